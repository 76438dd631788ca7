"""Updates under a condition: what does not hold is skipped, state included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._extra import with_extra
from funcloop.optim._hyper import zero_count


class ApplyIfState(NamedTuple):
    """State of `apply_if`.

    Attributes:
        step: Updates asked for so far, int64, 0-d.
        skipped: Updates skipped so far, int64, 0-d.
        applied: Whether the last update was applied, bool, 0-d.
        inner: State of the inner transform, as of the last applied update.
    """

    step: Tensor
    skipped: Tensor
    applied: Tensor
    inner: OptState


def apply_if(inner: Transform, condition: Callable[..., Tensor]) -> Transform:
    """`inner` where the condition holds; otherwise the params and its state stay as they are.

    Both outcomes are computed and one is chosen, so nothing looks at a value. Where the condition
    fails, the inner transform sees zeros, so that no NaN reaches a meta-gradient.

    Args:
        inner: Any transform.
        condition: `(step, updates, params, **extra) -> bool tensor, 0-d`.

    >>> import torch
    >>> from funcloop.optim import sgd
    >>> tx = apply_if(sgd(1.0), lambda step, updates, params, **extra: step % 2 == 1)
    >>> params = {"w": torch.tensor(1.0)}
    >>> state = tx.init(params)
    >>> for _ in range(2):
    ...     updates, state = tx.update(params, state, params)
    ...     print(updates["w"].item(), state.skipped.item())
    -0.0 1
    -1.0 1
    """
    tx = with_extra(inner)

    def init(params: Params, /) -> OptState:
        step = zero_count(params)
        applied = torch.ones_like(step, dtype=torch.bool)
        return ApplyIfState(step, torch.zeros_like(step), applied, tx.init(params))

    def update(
        updates: PyTree, state: ApplyIfState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        holds = condition(state.step, updates, params, **extra)
        seen = tree.map(lambda u: torch.where(holds, u, 0.0), updates)
        changed, new_inner = tx.update(seen, state.inner, params, **extra)
        skipped = state.skipped + (~holds).to(torch.int64)
        new_state = ApplyIfState(
            state.step + 1, skipped, holds, tree.where(holds, new_inner, state.inner)
        )
        return or_nothing(holds, changed), new_state

    return Transform(init, update)


def or_nothing(holds: Tensor, updates: PyTree) -> PyTree:
    """`updates` where the condition holds, otherwise what leaves every param bit-equal.

    That is negative zero: `x + -0.0` is x for every x, but `-0.0 + 0.0` is 0.0.
    """
    return tree.map(lambda u: torch.where(holds, u, -0.0), updates)


def apply_if_finite(inner: Transform) -> Transform:
    """`inner` where all gradients are finite; otherwise the step is skipped, moments included.

    `skipped` in the state counts how often.

    >>> import torch
    >>> from funcloop.optim import adam
    >>> tx, params = apply_if_finite(adam(0.1)), {"w": torch.tensor(1.0)}
    >>> updates, state = tx.update({"w": torch.tensor(float("nan"))}, tx.init(params), params)
    >>> updates["w"], state.skipped, state.inner[0].step
    (tensor(-0.), tensor(1), tensor(0))
    """
    return apply_if(inner, lambda step, updates, params, **extra: tree.all_finite(updates))
