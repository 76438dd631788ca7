"""Weights made to fit values, and sums in which what weighs nothing never counts."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ShapeError


def weight_for(values: Tensor, weight: Tensor | None) -> Tensor:
    """The weight in float64; ones of shape (B,) where there is none.

    Raises:
        ShapeError: the weight's shape is not the beginning of the values' shape.
    """
    if weight is None:
        return torch.ones(values.shape[:1], dtype=torch.float64, device=values.device)
    if weight.shape != values.shape[: weight.ndim]:
        raise ShapeError(
            "a weight has the leading dimensions of what it weighs: (B,), or (B, T) for tokens",
            f"weight of shape {tuple(weight.shape)} for values of {tuple(values.shape)}",
            "give one weight for each example or for each token",
        )
    return weight.to(torch.float64)


def spread(weight: Tensor, values: Tensor) -> Tensor:
    """The weight with dimensions of size one added, so that it broadcasts against the values."""
    return weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim))


def weighted_sum(values: Tensor, weight: Tensor) -> Tensor:
    """`sum(weight * values)` over the weight's dimensions, in float64.

    What has weight zero never contributes, also not a NaN.
    """
    wide = spread(weight, values)
    kept = torch.where(wide == 0, 0, values.to(torch.float64) * wide)
    return kept.sum(tuple(range(weight.ndim))) if weight.ndim else kept
