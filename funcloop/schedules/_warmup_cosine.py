"""A linear warmup, then half a cosine."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Schedule
from funcloop.schedules._cosine import cosine
from funcloop.schedules._count import as_float


def warmup_cosine(
    peak_value: float | Tensor,
    warmup_steps: int,
    total_steps: int,
    init_value: float | Tensor = 0.0,
    end_value: float | Tensor = 0.0,
) -> Schedule:
    """Linear from `init_value` to `peak_value`, then half a cosine to `end_value`, which stays.

    With the default `init_value` the first update has learning rate 0 and changes nothing.

    Args:
        peak_value: Value at count `warmup_steps`.
        warmup_steps: Length of the warmup; 0 starts at the peak.
        total_steps: The count at which the end value is reached, warmup included.
        init_value: Value at count 0.
        end_value: Value from `total_steps` on.

    Raises:
        ArgumentError: not 0 <= warmup_steps < total_steps.

    >>> import torch
    >>> warmup_cosine(1.0, 2, 6)(torch.arange(8))
    tensor([0.0000, 0.5000, 1.0000, 0.8536, 0.5000, 0.1464, 0.0000, 0.0000],
           dtype=torch.float64)
    """
    if not 0 <= warmup_steps < total_steps:
        raise ArgumentError(
            "a warmup ends before the schedule does",
            f"warmup_steps={warmup_steps}, total_steps={total_steps}",
            "give 0 <= warmup_steps < total_steps",
        )
    decay = cosine(peak_value, total_steps - warmup_steps, end_value)

    def schedule(count: Tensor, /) -> Tensor:
        step = as_float(count)
        rise = init_value + (peak_value - init_value) * step / max(warmup_steps, 1)
        return torch.where(step < warmup_steps, rise, decay(step - warmup_steps))

    return schedule
