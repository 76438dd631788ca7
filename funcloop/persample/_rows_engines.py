"""The engines that are always right: vmap, and a loop for what vmap cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcloop import tree
from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.persample._engine import Gradient, Units
from funcloop.persample._factors import Dense
from funcloop.persample._ghost import run
from funcloop.persample._piece import Piece
from funcloop.persample._recorder import Recorder
from funcloop.persample._units import count_units, unit_loss
from funcloop.stateless._guard import Guard


def by_vmap(
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    keys: Key | None,
    unit_axis: int | None,
) -> Units:
    """`vmap(grad(loss))`: every per-sample gradient is held."""
    return run(loss_fn, params, buffers, batch, keys, unit_axis, {})


def by_loop(
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    keys: Key | None,
    unit_axis: int | None,
) -> Units:
    """One unit after the other; runs whatever code runs for one example."""
    leaves, structure = tree.flatten(params)
    names, axis = tree.paths(params), unit_axis or 0
    rows = []
    for n in range(count_units(batch, unit_axis)):
        unit = tree.map(lambda x, n=n: x.select(axis, n), batch)
        key = None if keys is None else keys[n]
        after: list[Any] = []

        def loss(own: list[Tensor], unit: Batch = unit, key: Key | None = key, after: list = after):
            with Recorder(own, own, {}, names), Guard(None, {}, {}):
                one = unit_loss(
                    loss_fn, tree.unflatten(structure, own), buffers, unit, key, unit_axis
                )
            leaves, after[:] = _leaves_and_structure(one.buffers)
            weight = [] if one.weight is None else [one.weight]
            return one.loss, (one.loss, weight, dict(one.metrics), leaves)

        grads, aux = torch.func.grad(loss, has_aux=True)(leaves)
        rows.append((grads, *aux, after[0]))
    grads, losses, weights, metrics, states, structures = zip(*rows, strict=True)
    by_leaf = [torch.stack(gs) for gs in zip(*grads, strict=True)]
    return Units(
        torch.stack(losses),
        torch.stack([w for (w,) in weights]) if weights[0] else None,
        {name: torch.stack([m[name] for m in metrics]) for name in metrics[0]},
        _shared(states, structures[0]),
        [Gradient(i, leaves, len(losses), [(Piece(i), Dense(g))]) for i, g in enumerate(by_leaf)],
    )


def _leaves_and_structure(buffers: Buffers) -> tuple[list[Any], list[Any]]:
    leaves, structure = tree.flatten(buffers)
    return leaves, [structure]


def _shared(states: Sequence[list[Tensor]], structure: Any) -> Buffers:
    """The buffers that every example leaves behind.

    Raises:
        UnsupportedError: an example changed one.
    """
    return tree.unflatten(structure, states[0])
