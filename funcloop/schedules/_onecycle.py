"""The one-cycle policy (Smith & Topin 2017, arXiv:1708.07120), as torch's OneCycleLR."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Schedule
from funcloop.schedules._count import as_float


def _cosine(start: float | Tensor, end: float | Tensor, share: Tensor) -> Tensor:
    return end + (start - end) / 2 * (1 + torch.cos(torch.pi * share))


def _linear(start: float | Tensor, end: float | Tensor, share: Tensor) -> Tensor:
    return (end - start) * share + start


_SHAPES: dict[str, Callable[..., Tensor]] = {"cos": _cosine, "linear": _linear}


def onecycle(
    max_value: float | Tensor,
    total_steps: int,
    pct_start: float = 0.3,
    anneal_strategy: str = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> Schedule:
    """Up from `max_value / div_factor` to the peak, and down to that over `final_div_factor`.

    torch's OneCycleLR with the same arguments: the last of the `total_steps` counts,
    `total_steps - 1`, has the end value, which then stays (torch raises).

    Args:
        max_value: The peak.
        total_steps: Number of updates.
        pct_start: Share of the cycle that rises.
        anneal_strategy: "cos" or "linear".
        div_factor: Peak over start.
        final_div_factor: Start over end.
        three_phase: Fall to the start as slowly as it rose, and to the end from there.

    Raises:
        ArgumentError: an argument is out of range.

    >>> import torch
    >>> values = onecycle(1.0, 10, pct_start=0.4)(torch.arange(10))
    >>> [round(v, 4) for v in values[[0, 3, 9]].tolist()]
    [0.04, 1.0, 0.0]
    """
    if total_steps <= 1 or not 0 <= pct_start <= 1 or anneal_strategy not in _SHAPES:
        raise ArgumentError(
            "a cycle has two steps, a share that rises and a known shape",
            f"total_steps={total_steps}, pct_start={pct_start}, {anneal_strategy!r}",
            "give total_steps >= 2, pct_start in [0, 1], anneal_strategy 'cos' or 'linear'",
        )
    low, last, shape = max_value / div_factor, total_steps - 1, _SHAPES[anneal_strategy]
    final, top = low / final_div_factor, pct_start * total_steps - 1
    phases = [(top, low, max_value), (last, max_value, final)]
    if three_phase:
        phases[1:] = [(2 * top, max_value, low), (last, low, final)]

    def schedule(count: Tensor, /) -> Tensor:
        step = as_float(count).clamp(max=last)
        value, start = torch.zeros_like(step) + low, 0.0
        for i, (end, first, second) in enumerate(phases):
            length = (end - start) or 1.0
            piece = shape(first, second, (step - start) / length)
            value = piece if i == 0 else torch.where(step > start, piece, value)
            start = end
        return value

    return schedule
