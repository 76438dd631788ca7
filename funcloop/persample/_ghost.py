"""The ghost engine: one forward, one backward, and factors of the per-sample gradients.

The loss is vmapped over the units, so every tensor of the forward knows its example, wherever the
layers keep their batch dimension, and every example has its own key. The backward stops at the
outputs of the layers; what the layers' weights need is in their inputs and these gradients. What no
rule explains, autograd differentiates example by example in the same backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._compat import batch_levels, differentiating
from funcloop._errors import UnsupportedError
from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.persample._engine import Gradient, Units
from funcloop.persample._factors import Dense, Factor
from funcloop.persample._piece import Piece
from funcloop.persample._recorder import Recorded, Recorder
from funcloop.persample._refusals import explained
from funcloop.persample._units import unit_loss
from funcloop.persample._use import Rule, rules
from funcloop.stateless._guard import Guard


class _Seen(NamedTuple):
    """What a run of the forward shows of itself beside tensors.

    Attributes:
        recorded: The uses that a rule explains and whose gradient is not None.
        direct: Numbers of the parameters that autograd differentiated.
        unexplained: By parameter, who used it without a rule.
        output_overwritten: Whether the forward wrote into what a layer returned.
        buffers: Structure and leaves of the new buffers; None where a tensor was returned.
    """

    recorded: list[Recorded]
    direct: list[int]
    unexplained: Mapping[int, list[str]]
    output_overwritten: bool
    buffers: tuple[Any, list[Any]]


class _Returned(NamedTuple):
    """The tensors that a run returns, each with a leading unit dimension."""

    loss: Tensor
    weight: list[Tensor]
    metrics: dict[str, Tensor]
    saved: list[tuple[Tensor, ...]]
    grads: list[Tensor]
    direct: list[Tensor]
    buffers: list[Tensor]


def ghost(
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    keys: Key | None,
    unit_axis: int | None,
) -> Units:
    """The units of a batch, by rules where there are some and by autograd where there are none."""
    return run(loss_fn, params, buffers, batch, keys, unit_axis, rules())


def run(
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    keys: Key | None,
    unit_axis: int | None,
    rules: Mapping[Any, Rule],
) -> Units:
    """The same with the rules given."""
    given = loss_fn, params, buffers, batch, keys, unit_axis, rules
    seen, returned = _forward_and_backward(*given, copies=False)
    if seen.output_overwritten:
        seen, returned = _forward_and_backward(*given, copies=True)
    return _collect(params, buffers, seen, returned)


def _forward_and_backward(
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    keys: Key | None,
    unit_axis: int | None,
    rules: Mapping[Any, Rule],
    copies: bool,
) -> tuple[_Seen, _Returned]:
    leaves, structure = tree.flatten(params)
    names, outer = tree.paths(params), differentiating()
    seen: list[_Seen] = []

    units, batch_structure = tree.flatten(batch)

    def one_unit(unit: list[Tensor], key: Key | None) -> _Returned:
        level = max(batch_levels(unit[0]))

        def forward(own: list[Tensor], twins: list[Tensor]) -> tuple[Tensor, Any]:
            recorder = Recorder(own, twins, rules, names, copies)
            with recorder, Guard(None, {}, {}):
                one = unit_loss(
                    loss_fn,
                    tree.unflatten(structure, own),
                    buffers,
                    tree.unflatten(batch_structure, unit),
                    key,
                    unit_axis,
                )
            recorder.refuse_overwritten()
            arrivals, direct = _backward(one.loss, recorder.recorded, own, outer)
            uses = [u for u, g in zip(recorder.recorded, arrivals, strict=True) if g is not None]
            changed, returned_buffers = _changed_buffers(buffers, one.buffers, level)
            seen[:] = [
                _Seen(
                    uses,
                    [i for i, g in enumerate(direct) if g is not None],
                    recorder.unexplained,
                    recorder.output_overwritten() and not copies,
                    changed,
                )
            ]
            return one.loss, (
                [] if one.weight is None else [one.weight],
                dict(one.metrics),
                [use.saved for use in uses],
                [g for g in arrivals if g is not None],
                [g for g in direct if g is not None],
                returned_buffers,
            )

        loss, _, rest = torch.func.vjp(forward, leaves, leaves, has_aux=True)  # type: ignore[misc]  # three with has_aux
        return _Returned(loss, *rest)

    with explained():
        axes = (unit_axis or 0, None if keys is None else 0)
        returned = torch.vmap(one_unit, in_dims=axes)(units, keys)
    return seen[0], returned


def _backward(
    loss: Tensor, recorded: Sequence[Recorded], own: Sequence[Tensor], keep: bool
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The gradients that arrive at the outputs of explained uses, and at the parameters."""
    if not loss.requires_grad:
        return [None] * len(recorded), [None] * len(own)
    targets: list[Any] = [*(use.edge for use in recorded), *own]
    grads = torch.autograd.grad(loss, targets, allow_unused=True, create_graph=keep)
    return list(grads[: len(recorded)]), list(grads[len(recorded) :])


def _changed_buffers(
    before: Buffers, after: Buffers, level: int
) -> tuple[tuple[Any, list[Any]], list[Tensor]]:
    """The new buffers: those that were given as they are, and the others to be returned."""
    given = {id(x) for x in tree.leaves(before)}
    leaves, structure = tree.flatten(after)
    changed = [x for x in leaves if isinstance(x, Tensor) and id(x) not in given]
    new = {id(x) for x in changed}
    for path, x in tree.items(after):
        if id(x) in new and level in batch_levels(x):
            raise UnsupportedError(
                "examples that are clipped one by one cannot share a buffer that they all write",
                f"buffer {path} depends on the example",
                "freeze it with train=, or leave it out of the loss function",
            )
    return (structure, [None if id(x) in new else x for x in leaves]), changed


def _collect(params: Params, buffers: Buffers, seen: _Seen, returned: _Returned) -> Units:
    leaves = tree.leaves(params)
    units = returned.loss.shape[0]
    factors: list[list[tuple[Piece, Factor]]] = [[] for _ in leaves]
    functions: list[list[str]] = [[] for _ in leaves]
    for use, grad, saved in zip(seen.recorded, returned.grads, returned.saved, strict=True):
        factor = use.factor(grad, *saved)
        for leaf in use.piece.leaves():
            factors[leaf].append((use.piece, factor))
            functions[leaf].append(use.function)
    for leaf, rows in zip(seen.direct, returned.direct, strict=True):
        factors[leaf].append((Piece(leaf), Dense(rows)))
    gradients = [
        Gradient(
            leaf,
            leaves,
            units,
            factors[leaf],
            list(dict.fromkeys(functions[leaf])),
            list(dict.fromkeys(seen.unexplained.get(leaf, ()))) if leaf in seen.direct else (),
        )
        for leaf in range(len(leaves))
    ]
    structure, kept = seen.buffers
    fresh = iter(returned.buffers)
    new_buffers = tree.unflatten(structure, [next(fresh)[0] if x is None else x for x in kept])
    weight = returned.weight[0] if returned.weight else None
    return Units(returned.loss, weight, returned.metrics, new_buffers, gradients)
