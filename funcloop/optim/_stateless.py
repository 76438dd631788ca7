"""Transforms without memory, made from a formula for one leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._leaves import map_leaves


def stateless(formula: Callable[[Tensor], Tensor]) -> Transform:
    """The transform that applies `formula` to the update of every leaf; its state is empty.

    Args:
        formula: Sees the update as a real tensor of at least float32; a complex one as
            torch.view_as_real shows it.

    >>> import torch
    >>> sign = stateless(torch.sign)
    >>> sign.update({"w": torch.tensor([-3.0, 2.0])}, sign.init({}), {})[0]
    {'w': tensor([-1.,  1.])}
    """

    def init(params: Params, /) -> OptState:
        return ()

    def update(
        updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        (updates,) = map_leaves(formula, updates)
        return updates, state

    return Transform(init, update)


def stateless_with_params(formula: Callable[[Tensor, Tensor], Tensor]) -> Transform:
    """The transform that applies `formula(update, param)` to every leaf; its state is empty.

    >>> import torch
    >>> decay = stateless_with_params(lambda update, param: update + 0.1 * param)
    >>> decay.update({"w": torch.tensor(0.0)}, (), {"w": torch.tensor(10.0)})[0]
    {'w': tensor(1.)}
    """

    def init(params: Params, /) -> OptState:
        return ()

    def update(
        updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        (updates,) = map_leaves(formula, updates, reads=[params])
        return updates, state

    return Transform(init, update)
