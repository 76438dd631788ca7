"""Rprop (Riedmiller & Braun 1993): steps from the signs of gradients alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._hyper import check_range, zero_count
from funcloop.optim._leaves import full_like, map_leaves, zeros_like
from funcloop.optim._scale import scale


class RpropState(NamedTuple):
    """State of `rprop`.

    Attributes:
        step: Updates so far, int64, 0-d.
        prev: Last gradient, zero where the step was taken back; structure of the params.
        step_size: Step of each element, the same; both at least float32.
    """

    step: Tensor
    prev: PyTree
    step_size: PyTree


def rprop(
    lr: float | Tensor = 1e-2,
    etas: tuple[float, float] = (0.5, 1.2),
    step_sizes: tuple[float, float] = (1e-6, 50.0),
    *,
    maximize: bool = False,
) -> Transform:
    """torch.optim.Rprop, for full-batch gradients.

    A step grows while the sign of the gradient stays, and shrinks when it changes; then the
    gradient counts as zero once.

    Args:
        lr: Size of the first step.
        etas: Factors of shrinking and of growing.
        step_sizes: Smallest and largest step.
        maximize: Ascend.

    Raises:
        ArgumentError: not 0 < etas[0] < 1 < etas[1], or lr is negative.

    >>> import torch
    >>> tx, params = rprop(0.1), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(-0.1000)}
    """
    check_range("lr", lr)
    if not 0 < etas[0] < 1 < etas[1]:
        raise ArgumentError(
            "a step shrinks by etas[0] < 1 and grows by etas[1] > 1",
            f"etas={etas}",
            "use (0.5, 1.2)",
        )

    def init(params: Params, /) -> OptState:
        return RpropState(zero_count(params), zeros_like(params), full_like(params, lr))

    def update(
        updates: PyTree, state: RpropState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        updates, prev, sizes = map_leaves(
            _step, updates, state=[state.prev, state.step_size], scalars=[*etas, *step_sizes]
        )
        return updates, RpropState(state.step + 1, prev, sizes)

    return chain(*([scale(-1.0)] if maximize else []), Transform(init, update))


def _step(
    g: Tensor, prev: Tensor, size: Tensor, shrink: float, grow: float, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor]:
    agreement = torch.sign(g) * torch.sign(prev)  # the product of tiny gradients would underflow
    size = torch.where(
        agreement > 0, size * grow, torch.where(agreement < 0, size * shrink, size)
    ).clamp(low, high)
    g = torch.where(agreement < 0, 0.0, g)
    return -torch.sign(g) * size, g, size
