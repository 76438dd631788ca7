"""The vmap engine: `vmap(grad(loss))`, the ghost engine without a rule."""

from __future__ import annotations

from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.persample._engine import Units
from funcloop.persample._ghost import run


def by_vmap(
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    keys: Key | None,
    unit_axis: int | None,
) -> Units:
    """The units of a batch; every per-sample gradient is held."""
    return run(loss_fn, params, buffers, batch, keys, unit_axis, {})
