"""A constant factor for each step, or for each transition."""

from __future__ import annotations

from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Schedule
from funcloop.schedules._count import as_float


def exponential(
    init_value: float | Tensor,
    decay_rate: float | Tensor,
    transition_steps: int = 1,
    staircase: bool = False,
) -> Schedule:
    """`init_value * decay_rate ** (count / transition_steps)`; it has no end value.

    torch's ExponentialLR(gamma) is `exponential(lr, gamma)`.

    Args:
        init_value: Value at count 0.
        decay_rate: Factor over `transition_steps` updates.
        transition_steps: Updates to which the factor belongs.
        staircase: Round the exponent down, so that the value falls in steps.

    Raises:
        ArgumentError: transition_steps is not positive.

    >>> import torch
    >>> exponential(1.0, 0.1)(torch.arange(3))
    tensor([1.0000, 0.1000, 0.0100], dtype=torch.float64)
    """
    if transition_steps <= 0:
        raise ArgumentError(
            "transition_steps is positive", f"{transition_steps}", "give at least one step"
        )

    def schedule(count: Tensor, /) -> Tensor:
        exponent = as_float(count) / transition_steps
        return init_value * decay_rate ** (exponent.floor() if staircase else exponent)

    return schedule
