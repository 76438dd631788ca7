"""The loop engine: one unit after the other, for code that vmap cannot run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from funcloop import tree
from funcloop._types import Batch, Key
from funcloop.persample._buffers import Kept, split_written
from funcloop.persample._engine import Gradient, Units
from funcloop.persample._factor import Dense
from funcloop.persample._piece import Piece
from funcloop.persample._recorder import Recorder
from funcloop.persample._units import Call, count_units, unit_loss
from funcloop.stateless import Guard


def by_loop(call: Call) -> Units:
    """The units of a batch; runs whatever code runs for one example."""
    leaves, structure = tree.flatten(call.params)
    names, axis = tree.paths(call.params), call.unit_axis or 0
    kept: list[Kept] = []

    def loss(own: list[Tensor], unit: Batch, key: Key | None) -> tuple[Tensor, tuple[Any, ...]]:
        with Recorder(own, own, {}, names), Guard(None, {}, {}):
            one = unit_loss(call, tree.unflatten(structure, own), unit, key)
        # Without vmap nothing says what depends on the unit; a counter does not, and is no float.
        rest, written = split_written(call.buffers, one.buffers, Tensor.is_floating_point)
        kept[:] = [rest]
        weight = [] if one.weight is None else [one.weight]
        return one.loss, (one.loss, weight, dict(one.metrics), written)

    rows = []
    for n in range(count_units(call.batch, call.unit_axis)):
        unit = tree.map(lambda x, n=n: x.select(axis, n), call.batch)
        key = None if call.keys is None else call.keys[n]
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
