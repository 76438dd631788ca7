"""The inverse square root after a warmup (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Schedule
from funcloop.schedules._count import as_float


def inverse_sqrt(peak_value: float | Tensor, warmup_steps: int) -> Schedule:
    """Linear to `peak_value` at count `warmup_steps`, then `peak * sqrt(warmup_steps / count)`.

    The first update has learning rate 0 and changes nothing.

    Args:
        peak_value: Value at count `warmup_steps`.
        warmup_steps: Length of the warmup.

    Raises:
        ArgumentError: warmup_steps is not positive.

    >>> import torch
    >>> inverse_sqrt(1.0, 4)(torch.tensor([0, 2, 4, 16]))
    tensor([0.0000, 0.5000, 1.0000, 0.5000], dtype=torch.float64)
    """
    if warmup_steps <= 0:
        raise ArgumentError("warmup_steps is positive", f"{warmup_steps}", "give at least one step")

    def schedule(count: Tensor, /) -> Tensor:
        step = as_float(count)
        fall = (warmup_steps / step.clamp_min(warmup_steps)).sqrt()
        return peak_value * torch.minimum(step / warmup_steps, fall)

    return schedule
