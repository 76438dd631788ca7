"""No update at all: the leaves stay bit-equal."""

from __future__ import annotations

from typing import Any

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform


def freeze() -> Transform:
    """Updates of None, which `apply_updates` leaves alone, decay or not; for use in `partition`.

    >>> import torch
    >>> freeze().update({"w": torch.tensor(1.0)}, (), {"w": torch.tensor(2.0)})[0]
    {'w': None}
    """

    def init(params: Params, /) -> OptState:
        return ()

    def update(
        updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        return tree.map(lambda _: None, updates), state

    return Transform(init, update)
