"""Transforms written with Optax's three arguments, made to accept funcloop's keyword arguments."""

from __future__ import annotations

import inspect
from typing import Any

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform


def with_extra(tx: Transform) -> Transform:
    """A transform whose `update` takes `**extra` and hands on what `tx` asks for.

    A transform that already takes `**extra` is returned as it is; the state is that of `tx`.
    Anything with `init` and `update` is accepted.

    >>> import torch
    >>> half = Transform(lambda params: (), lambda u, state, params: (u / 2, state))
    >>> with_extra(half).update(torch.tensor(3.0), (), None, value=torch.tensor(0.1))
    (tensor(1.5000), ())
    """
    parameters = inspect.signature(tx.update).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return tx
    accepted = {p.name for p in list(parameters)[3:]}

    def update(
        updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        asked_for = {name: value for name, value in extra.items() if name in accepted}
        return tx.update(updates, state, params, **asked_for)

    return Transform(tx.init, update)
