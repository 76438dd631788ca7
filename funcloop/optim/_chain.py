"""Transforms one after the other: the updates of each are what the next one sees."""

from __future__ import annotations

from typing import Any

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._extra import with_extra


def chain(*transforms: Transform) -> Transform:
    """One transform out of several, applied from left to right; the state is a tuple, one each.

    Keyword arguments of `update`, such as `value=`, reach every link. The empty chain changes
    nothing, and chains nest.

    Args:
        transforms: The links, in the order in which they see the gradients.

    >>> import torch
    >>> from funcloop.optim import clip_by_global_norm, sgd
    >>> tx = chain(clip_by_global_norm(1.0), sgd(0.1))
    >>> params = {"w": torch.tensor([1.0, 1.0])}
    >>> updates, state = tx.update({"w": torch.tensor([30.0, 40.0])}, tx.init(params), params)
    >>> updates
    {'w': tensor([-0.0600, -0.0800])}
    """
    links = [with_extra(tx) for tx in transforms]

    def init(params: Params, /) -> OptState:
        return tuple(link.init(params) for link in links)

    def update(
        updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        new_state = []
        for link, link_state in zip(links, state, strict=True):
            updates, link_state = link.update(updates, link_state, params, **extra)
            new_state.append(link_state)
        return updates, tuple(new_state)

    return Transform(init, update)
