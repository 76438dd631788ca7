"""A chain whose links have names."""

from __future__ import annotations

from typing import Any

from funcloop._errors import ArgumentError
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._extra import with_extra


def named_chain(*links: tuple[str, Transform]) -> Transform:
    """`chain` with a name for each link; the state is a dict from name to that link's state.

    Args:
        links: Pairs of name and transform, in the order in which they see the gradients.

    Raises:
        ArgumentError: two links have the same name.

    >>> import torch
    >>> from funcloop.optim import clip_by_global_norm, sgd
    >>> tx = named_chain(("clip", clip_by_global_norm(1.0)), ("descend", sgd(0.1)))
    >>> params = {"w": torch.tensor([3.0, 4.0])}
    >>> _, state = tx.update(params, tx.init(params), params)
    >>> state["clip"].norm
    tensor(5., dtype=torch.float64)
    """
    named = {name: with_extra(tx) for name, tx in links}
    if len(named) != len(links):
        raise ArgumentError(
            "links have different names", f"{[name for name, _ in links]}", "rename one of them"
        )

    def init(params: Params, /) -> OptState:
        return {name: tx.init(params) for name, tx in named.items()}

    def update(
        updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        new_state = {}
        for name, tx in named.items():
            updates, new_state[name] = tx.update(updates, state[name], params, **extra)
        return updates, new_state

    return Transform(init, update)
