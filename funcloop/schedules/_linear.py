"""A straight line, and its powers."""

from __future__ import annotations

from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Schedule
from funcloop.schedules._count import as_float


def linear(
    init_value: float | Tensor, end_value: float | Tensor, transition_steps: int
) -> Schedule:
    """From `init_value` at count 0 straight to `end_value` at count `transition_steps`, then flat.

    torch's LinearLR(start_factor, end_factor, total_iters) is `linear(lr * start_factor,
    lr * end_factor, total_iters)`.

    Args:
        init_value: Value at count 0.
        end_value: Value from count `transition_steps` on.
        transition_steps: Length of the line.

    Raises:
        ArgumentError: transition_steps is not positive.

    >>> import torch
    >>> linear(1.0, 0.0, 4)(torch.arange(6))
    tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000, 0.0000], dtype=torch.float64)
    """
    return polynomial(init_value, end_value, 1.0, transition_steps)


def polynomial(
    init_value: float | Tensor,
    end_value: float | Tensor,
    power: float | Tensor,
    transition_steps: int,
) -> Schedule:
    """`end + (init - end) * (1 - count / transition_steps) ** power`, then `end_value`.

    torch's PolynomialLR(total_iters, power) is `polynomial(lr, 0.0, power, total_iters)`.

    Args:
        init_value: Value at count 0.
        end_value: Value from count `transition_steps` on.
        power: Exponent of the remaining share.
        transition_steps: When the end value is reached.

    Raises:
        ArgumentError: transition_steps is not positive.

    >>> import torch
    >>> polynomial(1.0, 0.0, 2.0, 2)(torch.arange(4))
    tensor([1.0000, 0.2500, 0.0000, 0.0000], dtype=torch.float64)
    """
    if transition_steps <= 0:
        raise ArgumentError(
            "transition_steps is positive", f"{transition_steps}", "give at least one step"
        )

    def schedule(count: Tensor, /) -> Tensor:
        left = 1 - (as_float(count) / transition_steps).clamp(0.0, 1.0)
        return end_value + (init_value - end_value) * left**power

    return schedule
