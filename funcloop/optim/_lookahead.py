"""Lookahead (Zhang et al. 2019, arXiv:1907.08610): fast steps, and slow ones towards them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._extra import with_extra
from funcloop.optim._hyper import zero_count
from funcloop.optim._leaves import map_leaves, wide_copy


class LookaheadState(NamedTuple):
    """State of `lookahead`.

    Attributes:
        step: Fast updates so far, int64, 0-d.
        slow: The slow params, at least float32.
        inner: State of the fast optimizer.
    """

    step: Tensor
    slow: PyTree
    inner: OptState


def lookahead(inner: Transform, sync_period: int = 6, slow_step_size: float = 0.5) -> Transform:
    """Every `sync_period` updates, move slow params towards the fast ones and go on from there.

    The params outside are the fast ones, as in the paper; evaluate `state.slow`. The inner state is
    kept over a synchronisation.

    Args:
        inner: The fast optimizer.
        sync_period: Fast updates between two synchronisations.
        slow_step_size: How far the slow params move, in [0, 1].

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> from funcloop.optim import sgd
    >>> tx, params = lookahead(sgd(1.0), sync_period=1), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(1.0)}, tx.init(params), params)[0]
    {'w': tensor(-0.5000)}
    """
    if sync_period < 1 or not 0.0 <= slow_step_size <= 1.0:
        raise ArgumentError(
            "sync_period is positive and slow_step_size lies in [0, 1]",
            f"sync_period={sync_period}, slow_step_size={slow_step_size}",
            "use 6 and 0.5",
        )
    tx = with_extra(inner)

    def init(params: Params, /) -> OptState:
        return LookaheadState(zero_count(params), wide_copy(params), tx.init(params))

    def update(
        updates: PyTree, state: LookaheadState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        updates, new_inner = tx.update(updates, state.inner, params, **extra)
        step = state.step + 1
        # A share of zero keeps the slow params, and then they are not looked at.
        share = slow_step_size * (step % sync_period == 0).to(torch.float64)
        updates, slow = map_leaves(
            _synchronise,
            updates,
            state=[state.slow],
            reads=[params],
            scalars=[share, (step % sync_period == 0).to(torch.float64)],
        )
        return updates, LookaheadState(step, slow, new_inner)

    return Transform(init, update)


def _synchronise(
    u: Tensor, slow: Tensor, fast: Tensor, share: Tensor, now: Tensor
) -> tuple[Tensor, Tensor]:
    slow = torch.lerp(slow, fast + u, share)
    return torch.where(now != 0, slow - fast, u), slow
