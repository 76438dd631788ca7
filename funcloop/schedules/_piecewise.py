"""Constant pieces: by boundaries, at every n-th step, or at milestones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Schedule
from funcloop.schedules._count import as_float
from funcloop.schedules._exponential import exponential


def piecewise(init_value: float | Tensor, scales: Mapping[int, float]) -> Schedule:
    """`init_value` times every factor whose boundary the count has reached.

    torch's MultiStepLR(milestones, gamma) has the same factor at every boundary, and its
    ConstantLR(factor, total_iters) is `piecewise(lr * factor, {total_iters: 1 / factor})`.

    Args:
        init_value: Value at count 0, unless 0 is a boundary.
        scales: From boundary to factor; the update with count `boundary` is the first to use it.

    >>> import torch
    >>> piecewise(1.0, {2: 0.5, 4: 0.1})(torch.arange(6))
    tensor([1.0000, 1.0000, 0.5000, 0.5000, 0.0500, 0.0500], dtype=torch.float64)
    """

    def schedule(count: Tensor, /) -> Tensor:
        step = as_float(count)
        value = torch.zeros_like(step) + init_value
        for boundary, factor in sorted(scales.items()):
            value = torch.where(step >= boundary, value * factor, value)
        return value

    return schedule


def step(init_value: float | Tensor, step_size: int, gamma: float = 0.1) -> Schedule:
    """`init_value * gamma ** (count // step_size)`: torch's StepLR.

    Args:
        init_value: Value at count 0.
        step_size: Updates between two falls; the first fall is at count `step_size`.
        gamma: Factor of a fall.

    Raises:
        ArgumentError: step_size is not positive.

    >>> import torch
    >>> step(1.0, 2, 0.5)(torch.arange(5))
    tensor([1.0000, 1.0000, 0.5000, 0.5000, 0.2500], dtype=torch.float64)
    """
    return exponential(init_value, gamma, step_size, staircase=True)


def multistep(
    init_value: float | Tensor, milestones: Sequence[int], gamma: float = 0.1
) -> Schedule:
    """`init_value` times `gamma` for every milestone reached: torch's MultiStepLR.

    A milestone that is listed twice counts twice.

    Args:
        init_value: Value at count 0.
        milestones: The counts at which it falls.
        gamma: Factor of a fall.

    Raises:
        ArgumentError: a milestone is negative.

    >>> import torch
    >>> multistep(1.0, [1, 3], 0.1)(torch.arange(5))
    tensor([1.0000, 0.1000, 0.1000, 0.0100, 0.0100], dtype=torch.float64)
    """
    if any(milestone < 0 for milestone in milestones):
        raise ArgumentError("milestones are counts", f"{list(milestones)}", "give counts >= 0")
    return piecewise(init_value, {m: gamma ** milestones.count(m) for m in milestones})
