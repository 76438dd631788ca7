"""Float32 copies of low-precision params, so that small updates are not rounded away."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree, unflatten
from funcloop._types import OptState, Params, Transform
from funcloop.optim._apply import apply_updates
from funcloop.optim._extra import with_extra
from funcloop.optim._leaves import ABSENT, align, wide_copy


class MasterState(NamedTuple):
    """State of `master_weights`.

    Attributes:
        master: Float32 copies of the params of lower precision, by path.
        inner: State of the inner transform.
    """

    master: dict[str, Tensor]
    inner: OptState


def master_weights(inner: Transform) -> Transform:
    """`inner` on float32 copies of bfloat16 and float16 params, which then follow the copies.

    The copies in the state are the truth: params changed by hand between two steps snap back.

    Args:
        inner: Any optimizer.

    >>> import torch
    >>> from funcloop.optim import sgd
    >>> tx, params = master_weights(sgd(1e-3)), {"w": torch.ones((), dtype=torch.bfloat16)}
    >>> state = tx.init(params)
    >>> for _ in range(10):
    ...     updates, state = tx.update({"w": torch.ones(())}, state, params)
    ...     params = apply_updates(params, updates)
    >>> params["w"].item(), round(state.master["w"].item(), 6)
    (0.98828125, 0.99)
    """
    tx = with_extra(inner)

    def init(params: Params, /) -> OptState:
        low = {path: p for path, p in tree.items(params) if _is_low(p)}
        master = wide_copy(low)
        return MasterState(master, tx.init(_filled(params, master)))

    def update(
        updates: PyTree, state: MasterState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        full = _filled(params, state.master)
        updates, new_inner = tx.update(updates, state.inner, full, **extra)
        new = apply_updates(full, updates)
        master = {path: p for path, p in tree.items(new) if path in state.master}
        return _towards(new, params, updates), MasterState(master, new_inner)

    return Transform(init, update)


def _filled(params: Params, master: dict[str, Tensor]) -> Params:
    """The params, with the master copy of those that have one."""
    return tree.map_with_path(lambda path, p: master.get(path, p), params)


def _towards(new: Params, params: Params, updates: PyTree) -> PyTree:
    """`updates`, but for low-precision params what leads to the new master copy."""
    (changes, old, wanted), structure = align(updates, [params, new])
    rows = [
        None if u is ABSENT else w - p.to(w.dtype) if w.dtype != p.dtype else u
        for u, p, w in zip(changes, old, wanted, strict=True)
    ]
    return unflatten(structure, rows)


def _is_low(param: Tensor) -> bool:
    return torch.promote_types(param.dtype, torch.float32) != param.dtype
