"""Updates times one number: fixed, scheduled, or the negative learning rate."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Schedule, Transform
from funcloop.optim._hyper import Hyper, as_tensor, check_range, value_at, zero_count
from funcloop.optim._leaves import map_leaves


def _times(update: Tensor, factor: float | Tensor) -> Tensor:
    return update * factor


def scale(factor: float | Tensor) -> Transform:
    """Multiply every update by `factor`, a number or a 0-d tensor.

    >>> import torch
    >>> tx = scale(-0.5)
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init({}), {})[0]
    {'w': tensor(-1.)}
    """

    def init(params: Params, /) -> OptState:
        return ()

    def update(
        updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        (updates,) = map_leaves(_times, updates, scalars=[factor])
        return updates, state

    return Transform(init, update)


class ScaleByScheduleState(NamedTuple):
    """`step`: updates so far, int64, 0-d."""

    step: Tensor


def scale_by_schedule(schedule: Schedule) -> Transform:
    """Multiply every update by `schedule(count)`, with count 0 at the first update.

    >>> import torch
    >>> tx = scale_by_schedule(lambda count: 1 / (1 + count))
    >>> state = tx.init({"w": torch.tensor(0.0)})
    >>> for _ in range(2):
    ...     updates, state = tx.update({"w": torch.tensor(1.0)}, state, {})
    >>> updates
    {'w': tensor(0.5000)}
    """

    def init(params: Params, /) -> OptState:
        return ScaleByScheduleState(zero_count(params))

    def update(
        updates: PyTree, state: ScaleByScheduleState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        (updates,) = map_leaves(_times, updates, scalars=[schedule(state.step)])
        return updates, ScaleByScheduleState(state.step + 1)

    return Transform(init, update)


class LearningRateState(NamedTuple):
    """State of `scale_by_learning_rate`.

    Attributes:
        step: Updates so far, int64, 0-d.
        learning_rate: What the last update used (before the first: what it will use), 0-d.
    """

    step: Tensor
    learning_rate: Tensor


def scale_by_learning_rate(lr: Hyper) -> Transform:
    """Multiply every update by `-lr`: the last link of an optimizer, which then descends.

    Args:
        lr: A float, a 0-d tensor, or a schedule, which sees count 0 at the first update.

    Raises:
        ArgumentError: a plain number is negative.

    >>> import torch
    >>> tx = scale_by_learning_rate(0.1)
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init({}), {})[0]
    {'w': tensor(-0.2000)}
    """
    check_range("lr", lr)

    def init(params: Params, /) -> OptState:
        count = zero_count(params)
        return LearningRateState(count, as_tensor(value_at(lr, count), count))

    def update(
        updates: PyTree, state: LearningRateState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        rate = value_at(lr, state.step)
        (updates,) = map_leaves(_times, updates, scalars=[-rate])
        return updates, LearningRateState(state.step + 1, as_tensor(rate, state.step))

    return Transform(init, update)
