"""The factor that clips a gradient to a norm."""

from __future__ import annotations

import torch
from torch import Tensor


def root(squared: Tensor) -> Tensor:
    """The square root, with derivative zero at zero."""
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1).sqrt(), squared)


def clip_factors(norms: Tensor, max_norm: float | Tensor, normalize: bool) -> Tensor:
    """What to multiply gradients of these norms with, of their shape.

    `min(1, max_norm / norm)`; with `normalize`, `max_norm / norm`, and zero for a zero gradient.
    The factor of a gradient that is not finite is NaN: nothing can be said about its clipped value.
    So is the factor for a bound that is not above zero, which would turn gradients round.

    >>> clip_factors(torch.tensor([0.0, 1.0, 4.0, torch.inf]), 2.0, False)
    tensor([1.0000, 1.0000, 0.5000,    nan])
    """
    scaled = max_norm / torch.where(norms > 0, norms, 1)
    if normalize:
        factors = torch.where(norms > 0, scaled, 0)
    else:
        factors = torch.where(norms > max_norm, scaled, 1)
    return torch.where(norms.isfinite() & (max_norm > 0), factors, torch.nan)
