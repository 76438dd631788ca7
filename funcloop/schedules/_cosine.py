"""Half a cosine from one value down to another (Loshchilov & Hutter 2016, arXiv:1608.03983)."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Schedule
from funcloop.schedules._count import as_float


def cosine(
    init_value: float | Tensor, decay_steps: int, end_value: float | Tensor = 0.0
) -> Schedule:
    """From `init_value` at count 0 down to `end_value` at count `decay_steps`, which then stays.

    torch's CosineAnnealingLR(T_max=decay_steps, eta_min=end_value) up to count `decay_steps`;
    torch's climbs again after that, this one stays.

    Args:
        init_value: Value at count 0.
        decay_steps: The count at which the end value is reached: an update with that count is the
            first to use it.
        end_value: Value from then on.

    Raises:
        ArgumentError: decay_steps is not positive.

    >>> import torch
    >>> cosine(1.0, 4)(torch.arange(5))
    tensor([1.0000, 0.8536, 0.5000, 0.1464, 0.0000], dtype=torch.float64)
    """
    if decay_steps <= 0:
        raise ArgumentError("decay_steps is positive", f"{decay_steps}", "give at least one step")

    def schedule(count: Tensor, /) -> Tensor:
        progress = (as_float(count) / decay_steps).clamp(0.0, 1.0)
        share = (1 + torch.cos(torch.pi * progress)) / 2
        return end_value + (init_value - end_value) * share

    return schedule
