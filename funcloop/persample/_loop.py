"""The loop engine: one unit after the other, for code that vmap cannot run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from funcloop import tree
from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.persample._buffers import Kept, split_written
from funcloop.persample._engine import Gradient, Units
from funcloop.persample._factor import Dense
from funcloop.persample._piece import Piece
from funcloop.persample._recorder import Recorder
from funcloop.persample._units import count_units, unit_loss
from funcloop.stateless import Guard


def by_loop(
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    keys: Key | None,
    unit_axis: int | None,
) -> Units:
    """The units of a batch; runs whatever code runs for one example."""
    leaves, structure = tree.flatten(params)
    names, axis = tree.paths(params), unit_axis or 0
    kept: list[Kept] = []

    def loss(own: list[Tensor], unit: Batch, key: Key | None) -> tuple[Tensor, tuple[Any, ...]]:
        with Recorder(own, own, {}, names), Guard(None, {}, {}):
            one = unit_loss(loss_fn, tree.unflatten(structure, own), buffers, unit, key, unit_axis)
        # Without vmap nothing says what depends on the unit; a counter does not, and is no float.
        rest, written = split_written(buffers, one.buffers, Tensor.is_floating_point)
        kept[:] = [rest]
        weight = [] if one.weight is None else [one.weight]
        return one.loss, (one.loss, weight, dict(one.metrics), written)

    rows = []
    for n in range(count_units(batch, unit_axis)):
        unit = tree.map(lambda x, n=n: x.select(axis, n), batch)
        key = None if keys is None else keys[n]
        rows.append(torch.func.grad(loss, has_aux=True)(leaves, unit, key))
    grads, aux = zip(*rows, strict=True)
    losses, weights, metrics, written = zip(*aux, strict=True)
    by_leaf = [torch.stack(gs) for gs in zip(*grads, strict=True)]
    return Units(
        torch.stack(losses),
        torch.stack([w for (w,) in weights]) if weights[0] else None,
        {name: torch.stack([m[name] for m in metrics]) for name in metrics[0]},
        kept[0].joined(written[0]),
        [Gradient(i, leaves, len(losses), [(Piece(i), Dense(g))]) for i, g in enumerate(by_leaf)],
    )
