"""The coefficient of determination; variances joined as in Chan, Golub & LeVeque (1979)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from funcloop.loop.metrics._mean import check_alike
from funcloop.loop.metrics._weighted import spread, weight_for, weighted_sum


class R2(NamedTuple):
    """Sums of squares around the prediction and around the mean.

    Sums of `y` and `y ** 2` would lose all digits where the mean is large beside the spread.

    Attributes:
        weight: Sum of the weights, 0-d float64.
        mean: Mean of the target for each output, float64, shape (...); zero without weight.
        spread: Sum of weight times squared distance from that mean, shape (...).
        residual: Sum of weight times squared error, shape (...).
    """

    weight: Tensor
    mean: Tensor
    spread: Tensor
    residual: Tensor

    def combine(self, other: R2) -> R2:
        """The sums of both."""
        total = self.weight + other.weight
        share = spread(other.weight / torch.where(total == 0, 1, total), self.mean)
        between = other.mean - self.mean
        return R2(
            total,
            self.mean + share * between,
            self.spread + other.spread + between.square() * share * spread(self.weight, self.mean),
            self.residual + other.residual,
        )

    def compute(self) -> Tensor:
        """`1 - residual / spread`, averaged over outputs; NaN without weight.

        For a constant target it is 1 where every prediction is right, otherwise 0.
        """
        constant = self.spread == 0
        each = 1 - self.residual / torch.where(constant, 1, self.spread)
        each = torch.where(constant, (self.residual == 0).double(), each)
        averaged = each.reshape(*self.weight.shape, -1).mean(-1)
        return torch.where(self.weight == 0, torch.nan, averaged)


def r2(output: Tensor, target: Tensor, weight: Tensor | None = None) -> R2:
    """The share of the target's variance that the predictions explain.

    Args:
        output: Predictions, shape (B, ...). Where an example has several numbers, each has its
            own R2 and these are averaged, as scikit-learn does it.
        target: Of the same shape.
        weight: Of the leading dimensions; ones by default.

    Raises:
        ShapeError: output and target differ in shape.

    >>> import torch
    >>> r2(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 2.0, 3.0])).compute()
    tensor(0.5000, dtype=torch.float64)
    """
    check_alike(output, target)
    weight = weight_for(target, weight)
    target, total = target.double(), weight.sum()
    shift = _some_target(target, weight)
    mean = shift + weighted_sum(target - shift, weight) / torch.where(total == 0, 1, total)
    return R2(
        total,
        mean,
        weighted_sum((target - mean).square(), weight),
        weighted_sum((target - output.double()).square(), weight),
    )


def _some_target(target: Tensor, weight: Tensor) -> Tensor:
    """The largest target that weighs something: a constant target is then exactly its mean."""
    counted = torch.where(spread(weight, target) == 0, -torch.inf, target)
    largest = counted.flatten(0, weight.ndim - 1).amax(0) if weight.ndim else counted
    return torch.where(largest.isfinite(), largest, 0)
