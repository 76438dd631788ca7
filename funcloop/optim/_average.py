"""Averages: of updates (ema), and of the params along a run (polyak_average)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._extra import with_extra
from funcloop.optim._hyper import Hyper, check_range, power, value_at, zero_count
from funcloop.optim._leaves import map_leaves, wide_copy, zeros_like


class EmaState(NamedTuple):
    """State of `ema`.

    Attributes:
        step: Updates so far, int64, 0-d.
        ema: Decayed mean of the updates, structure of the params, at least float32.
    """

    step: Tensor
    ema: PyTree


def ema(decay: float | Tensor, debias: bool = True) -> Transform:
    """The exponential moving average of the updates, as optax.ema.

    Args:
        decay: Weight of the past, in [0, 1).
        debias: Divide by `1 - decay ** t`, so that the first average is the first update.

    Raises:
        ArgumentError: a plain decay is out of range.

    >>> import torch
    >>> tx, params = ema(0.5), {"w": torch.tensor(0.0)}
    >>> tx.update({"w": torch.tensor(3.0)}, tx.init(params), params)[0]
    {'w': tensor(3.)}
    """
    check_range("decay", decay, 0.0, 1.0)

    def init(params: Params, /) -> OptState:
        return EmaState(zero_count(params), zeros_like(params))

    def update(
        updates: PyTree, state: EmaState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        step = state.step + 1
        correction = 1 - power(decay, step) if debias else 1.0
        updates, average = map_leaves(
            _averaged, updates, state=[state.ema], scalars=[1 - decay, correction]
        )
        return updates, EmaState(step, average)

    return Transform(init, update)


def _averaged(u: Tensor, average: Tensor, new: Any, correction: Any) -> tuple[Tensor, Tensor]:
    average = torch.lerp(average, u, new)
    return average / correction, average


class PolyakState(NamedTuple):
    """State of `polyak_average`.

    Attributes:
        step: Updates so far, int64, 0-d.
        average: The averaged params, at least float32; before the first update, the params.
        inner: State of the inner transform.
    """

    step: Tensor
    average: PyTree
    inner: OptState


def polyak_average(inner: Transform, decay: Hyper = 0.999) -> Transform:
    """`inner`, with an average of the params after each update kept in the state.

    Args:
        inner: Any optimizer.
        decay: Weight of the past: a float, a 0-d tensor, or a schedule. The schedule
            `lambda count: count / (count + 1)` gives the plain mean of all params so far.

    Raises:
        ArgumentError: a plain decay is out of range.

    >>> import torch
    >>> from funcloop.optim import sgd
    >>> tx, params = polyak_average(sgd(1.0), decay=0.5), {"w": torch.tensor(4.0)}
    >>> _, state = tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)
    >>> averaged_params(state, params)
    {'w': tensor(3.)}
    """
    check_range("decay", decay, 0.0, 1.0)
    tx = with_extra(inner)

    def init(params: Params, /) -> OptState:
        return PolyakState(zero_count(params), wide_copy(params), tx.init(params))

    def update(
        updates: PyTree, state: PolyakState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        updates, new_inner = tx.update(updates, state.inner, params, **extra)
        updates, average = map_leaves(
            lambda u, average, p, new: (u, torch.lerp(average, p + u, new)),
            updates,
            state=[state.average],
            reads=[params],
            scalars=[1 - value_at(decay, state.step)],
        )
        return updates, PolyakState(state.step + 1, average, new_inner)

    return Transform(init, update)


def averaged_params(state: PolyakState, params: Params) -> Params:
    """The averaged params of a `polyak_average` state, in the dtypes of `params`.

    >>> import torch
    >>> from funcloop.optim import polyak_average, sgd
    >>> params = {"w": torch.tensor(2.0)}
    >>> averaged_params(polyak_average(sgd(0.1)).init(params), params)
    {'w': tensor(2.)}
    """
    return tree.map(lambda p, average: average.to(p.dtype), params, state.average)
