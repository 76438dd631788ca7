"""Warmup, stable, decay (Hu et al. 2024, arXiv:2404.06395)."""

from __future__ import annotations

from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Schedule
from funcloop.schedules._constant import constant
from funcloop.schedules._join import join
from funcloop.schedules._linear import linear


def wsd(
    peak_value: float | Tensor,
    warmup_steps: int,
    stable_steps: int,
    decay_steps: int,
    init_value: float | Tensor = 0.0,
    end_value: float | Tensor = 0.0,
) -> Schedule:
    """Linear up to `peak_value`, flat, and linear down to `end_value`, which stays.

    The end value is reached at count `warmup_steps + stable_steps + decay_steps`. With the default
    `init_value` the first update has learning rate 0 and changes nothing.

    Args:
        peak_value: Value of the plateau.
        warmup_steps: Length of the rise; 0 starts at the peak.
        stable_steps: Length of the plateau.
        decay_steps: Length of the fall.
        init_value: Value at count 0.
        end_value: Value at the end.

    Raises:
        ArgumentError: a length is negative, or there is no fall.

    >>> import torch
    >>> wsd(1.0, 2, 2, 2)(torch.arange(8))
    tensor([0.0000, 0.5000, 1.0000, 1.0000, 1.0000, 0.5000, 0.0000, 0.0000],
           dtype=torch.float64)
    """
    if min(warmup_steps, stable_steps) < 0 or decay_steps < 1:
        raise ArgumentError(
            "phases have lengths",
            f"warmup_steps={warmup_steps}, stable_steps={stable_steps}, decay_steps={decay_steps}",
            "give warmup_steps, stable_steps >= 0 and decay_steps >= 1",
        )
    rise = linear(init_value, peak_value, warmup_steps) if warmup_steps else constant(peak_value)
    return join(
        [rise, constant(peak_value), linear(peak_value, end_value, decay_steps)],
        [warmup_steps, warmup_steps + stable_steps],
    )
