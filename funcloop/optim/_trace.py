"""Momentum as torch.optim.SGD keeps it: the first buffer is the first gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._hyper import Hyper, check_range, value_at, zero_count
from funcloop.optim._leaves import map_leaves, zeros_like


class TraceState(NamedTuple):
    """State of `trace`.

    Attributes:
        step: Updates so far, int64, 0-d.
        momentum_buffer: With the structure of the params, at least float32.
    """

    step: Tensor
    momentum_buffer: PyTree


def trace(momentum: Hyper, dampening: Hyper = 0.0, nesterov: bool = False) -> Transform:
    """Momentum: `b = momentum * b + (1 - dampening) * g`, and `b = g` at the first update.

    Args:
        momentum: A float, a 0-d tensor, or a schedule.
        dampening: The same; it does not bite at the first update, as in torch.optim.SGD.
        nesterov: Return `g + momentum * b` in place of `b`.

    >>> import torch
    >>> tx = trace(0.9, dampening=0.5)
    >>> state = tx.init({"w": torch.tensor(0.0)})
    >>> for _ in range(3):
    ...     updates, state = tx.update({"w": torch.tensor(1.0)}, state, {})
    >>> updates
    {'w': tensor(1.7600)}
    """
    check_range("momentum", momentum)

    def init(params: Params, /) -> OptState:
        return TraceState(zero_count(params), zeros_like(params))

    def update(
        updates: PyTree, state: TraceState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        decay = value_at(momentum, state.step)
        # The buffer starts at zero, so a share of one makes the first buffer the gradient.
        share = 1 - value_at(dampening, state.step) * (state.step > 0).to(torch.float64)
        updates, buffer = map_leaves(
            _nesterov if nesterov else _heavy_ball,
            updates,
            state=[state.momentum_buffer],
            scalars=[decay, share],
        )
        return updates, TraceState(state.step + 1, buffer)

    return Transform(init, update)


def _heavy_ball(
    grad: Tensor, buffer: Tensor, decay: float | Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    buffer = buffer * decay + grad * share
    return buffer, buffer


def _nesterov(
    grad: Tensor, buffer: Tensor, decay: float | Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    buffer = buffer * decay + grad * share
    return grad + buffer * decay, buffer
