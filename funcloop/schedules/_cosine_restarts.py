"""Cosines one after the other (Loshchilov & Hutter 2016, arXiv:1608.03983)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Schedule
from funcloop.schedules._count import as_float


def cosine_restarts(
    init_value: float | Tensor, first_steps: int, factor: int = 1, end_value: float | Tensor = 0.0
) -> Schedule:
    """Half a cosine from `init_value` towards `end_value`, again and again, ever longer.

    torch's CosineAnnealingWarmRestarts(T_0, T_mult, eta_min) is `cosine_restarts(lr, T_0, T_mult,
    eta_min)`. The end value itself is never reached: at that count the next cosine starts.

    Args:
        init_value: Value at count 0 and at every restart.
        first_steps: Length of the first cosine.
        factor: How many times longer each is than the one before.
        end_value: What each falls towards.

    Raises:
        ArgumentError: first_steps or factor is not positive.

    >>> import torch
    >>> cosine_restarts(1.0, 2, 2)(torch.arange(7))
    tensor([1.0000, 0.5000, 1.0000, 0.8536, 0.5000, 0.1464, 1.0000], dtype=torch.float64)
    """
    if first_steps <= 0 or factor < 1:
        raise ArgumentError(
            "a cosine has at least one step, and the next is no shorter",
            f"first_steps={first_steps}, factor={factor}",
            "give first_steps >= 1 and an int factor >= 1",
        )

    def schedule(count: Tensor, /) -> Tensor:
        step = as_float(count)
        if factor == 1:
            start, length = (
                (step / first_steps).floor() * first_steps,
                torch.full_like(step, first_steps),
            )
        else:
            # Cosine n starts at first_steps * (factor ** n - 1) / (factor - 1). The half step keeps
            # the logarithm off the boundary, where its rounding would decide.
            cycles = ((step + 0.5) / first_steps * (factor - 1) + 1).log() / math.log(factor)
            length = first_steps * factor ** cycles.floor()
            start = (length - first_steps) / (factor - 1)
        share = (1 + torch.cos(torch.pi * (step - start) / length)) / 2
        return end_value + (init_value - end_value) * share

    return schedule
