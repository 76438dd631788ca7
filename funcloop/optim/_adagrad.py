"""Adagrad (Duchi et al. 2011): each gradient divided by the root of all squares so far."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._hyper import Hyper, as_schedule, check_range, is_zero, value_at, zero_count
from funcloop.optim._leaves import full_like, map_leaves, safe_sqrt
from funcloop.optim._scale import scale, scale_by_learning_rate


class AdagradState(NamedTuple):
    """State of `scale_by_adagrad`.

    Attributes:
        step: Updates so far, int64, 0-d.
        sum: Sum of squares, with the structure of the params, at least float32.
    """

    step: Tensor
    sum: PyTree


def scale_by_adagrad(initial_accumulator_value: float = 0.0, eps: Hyper = 1e-10) -> Transform:
    """`g / (sqrt(sum of squares) + eps)`, as torch.optim.Adagrad.

    Args:
        initial_accumulator_value: What the sum starts at.
        eps: Added outside the root.

    >>> import torch
    >>> tx, params = scale_by_adagrad(7.0), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(3.0)}, tx.init(params), params)[0]
    {'w': tensor(0.7500)}
    """
    check_range("initial_accumulator_value", initial_accumulator_value)
    check_range("eps", eps)

    def init(params: Params, /) -> OptState:
        return AdagradState(zero_count(params), full_like(params, initial_accumulator_value))

    def update(
        updates: PyTree, state: AdagradState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        updates, total = map_leaves(
            _direction, updates, state=[state.sum], scalars=[value_at(eps, state.step)]
        )
        return updates, AdagradState(state.step + 1, total)

    return Transform(init, update)


def _direction(g: Tensor, total: Tensor, eps: Any) -> tuple[Tensor, Tensor]:
    total = torch.addcmul(total, g, g)
    return g / (safe_sqrt(total) + eps), total


def adagrad(
    lr: Hyper = 1e-2,
    lr_decay: float = 0.0,
    weight_decay: Hyper = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: Hyper = 1e-10,
    *,
    maximize: bool = False,
) -> Transform:
    """torch.optim.Adagrad.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule.
        lr_decay: The learning rate at count t is `lr / (1 + t * lr_decay)`.
        weight_decay: Added to the gradient.
        initial_accumulator_value: What the sum of squares starts at.
        eps: Added outside the root.
        maximize: Ascend.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = adagrad(0.1), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(3.0)}, tx.init(params), params)[0]
    {'w': tensor(-0.1000)}
    """
    check_range("lr", lr)
    check_range("lr_decay", lr_decay)
    rate = as_schedule(lr)
    falling = lr if is_zero(lr_decay) else lambda count: rate(count) / (1 + count * lr_decay)
    return chain(
        *([scale(-1.0)] if maximize else []),
        decayed(scale_by_adagrad(initial_accumulator_value, eps), weight_decay),
        scale_by_learning_rate(falling),
    )
