"""The root of the mean squared error."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from funcloop.loop.metrics._mean import check_alike
from funcloop.loop.metrics._weighted import weight_for, weighted_sum


class RMSE(NamedTuple):
    """Sums of a root mean square.

    Attributes:
        total: Sum of weight times squared error for each output, float64, shape (...).
        weight: Sum of the weights, 0-d float64.
    """

    total: Tensor
    weight: Tensor

    def combine(self, other: RMSE) -> RMSE:
        """The sums of both."""
        return RMSE(self.total + other.total, self.weight + other.weight)

    def compute(self) -> Tensor:
        """The root mean square of each output, averaged over outputs; NaN without weight."""
        total = self.total.reshape(*self.weight.shape, -1)
        return (total / self.weight.unsqueeze(-1)).sqrt().mean(-1)


def rmse(output: Tensor, target: Tensor, weight: Tensor | None = None) -> RMSE:
    """The root mean squared error, in the unit of the target.

    Args:
        output: Predictions, shape (B, ...). Where an example has several numbers, each has its
            own root and these are averaged, as scikit-learn does it.
        target: Of the same shape.
        weight: Of the leading dimensions; ones by default.

    Raises:
        ShapeError: output and target differ in shape.

    >>> import torch
    >>> rmse(torch.tensor([1.0, 5.0]), torch.tensor([0.0, -2.0])).compute()
    tensor(5., dtype=torch.float64)
    """
    check_alike(output, target)
    weight = weight_for(target, weight)
    return RMSE(weighted_sum((output.double() - target.double()).square(), weight), weight.sum())
