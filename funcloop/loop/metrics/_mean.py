"""Weighted means of per-example values: the metrics that are plainly additive."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from funcloop._errors import ShapeError
from funcloop.estimators import Criterion
from funcloop.loop.metrics._weighted import weight_for, weighted_sum


class Mean(NamedTuple):
    """Sums of a mean.

    Attributes:
        total: Sum of weight times value, 0-d float64.
        weight: Sum of the weights, 0-d float64.
    """

    total: Tensor
    weight: Tensor

    def combine(self, other: Mean) -> Mean:
        """The sums of both."""
        return type(self)(self.total + other.total, self.weight + other.weight)

    def compute(self) -> Tensor:
        """The mean; NaN where nothing weighed anything."""
        return self.total / self.weight


def mean(
    value: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor, Tensor | None], Mean]:
    """The weighted mean of any per-example value.

    Args:
        value: `(output, target) -> values`, such as the `metrics` of `supervised`. Dimensions
            beyond those of the weight (tokens, pixels) are averaged within the example.

    >>> import torch
    >>> bias = mean(lambda output, target: output - target)
    >>> sums = bias(torch.tensor([3.0, 5.0]), torch.tensor([1.0, 1.0]), torch.tensor([3.0, 1.0]))
    >>> sums.compute()
    tensor(2.5000, dtype=torch.float64)
    """

    def metric(output: Tensor, target: Tensor, weight: Tensor | None = None) -> Mean:
        return mean_of(value(output, target), weight)

    return metric


def loss(criterion: Criterion) -> Callable[[Tensor, Tensor, Tensor | None], Mean]:
    """The mean loss, as `supervised` with the same criterion gives it.

    Args:
        criterion: `F.cross_entropy`, `F.mse_loss`, or anything that takes `reduction="none"`.

    >>> import torch, torch.nn.functional as F
    >>> loss(F.mse_loss)(torch.tensor([1.0, 2.0]), torch.zeros(2)).compute()
    tensor(2.5000, dtype=torch.float64)
    """
    return mean(lambda output, target: criterion(output, target, reduction="none"))


def mae(output: Tensor, target: Tensor, weight: Tensor | None = None) -> Mean:
    """The mean absolute error, in the unit of the target.

    Args:
        output: Predictions, shape (B, ...).
        target: Of the same shape.
        weight: Of the leading dimensions; ones by default.

    Raises:
        ShapeError: output and target differ in shape.

    >>> import torch
    >>> mae(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 2.0])).compute()
    tensor(2., dtype=torch.float64)
    """
    check_alike(output, target)
    return mean_of((output.double() - target.double()).abs(), weight)


def mean_of(values: Tensor, weight: Tensor | None) -> Mean:
    """The sums of values of shape (B, ...)."""
    weight = weight_for(values, weight)
    per_weight = values.double().reshape(*weight.shape, -1).mean(-1)
    return Mean(weighted_sum(per_weight, weight), weight.sum())


def check_alike(output: Tensor, target: Tensor) -> None:
    """Refuse what would broadcast: (B, 1) beside (B,) compares every pair.

    Raises:
        ShapeError: the shapes differ.
    """
    if output.shape != target.shape:
        raise ShapeError(
            "a prediction has the shape of its target",
            f"output {tuple(output.shape)} beside target {tuple(target.shape)}",
            "squeeze or reshape one of them",
        )
