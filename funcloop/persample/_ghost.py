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
from funcloop._types import Key, Params
from funcloop.persample._buffers import Kept, split_written
from funcloop.persample._engine import Gradient, Units
from funcloop.persample._factor import Dense, Factor
from funcloop.persample._piece import Piece
from funcloop.persample._recorded import Recorded
from funcloop.persample._recorder import Recorder
from funcloop.persample._refusals import explained
from funcloop.persample._units import Call, UnitLoss, unit_loss
from funcloop.persample._use import Rule, rules
from funcloop.stateless import Guard


class _Seen(NamedTuple):
    """What a run of the forward shows of itself beside tensors.

    Attributes:
        recorded: The uses that a rule explains and whose gradient is not None.
        direct: Numbers of the parameters that autograd differentiated.
        unexplained: By parameter, who used it without a rule.
        output_overwritten: Whether the forward wrote into what a layer returned.
        kept: The new buffers but for those that were written.
    """

    recorded: list[Recorded]
    direct: list[int]
    unexplained: Mapping[int, list[str]]
    output_overwritten: bool
    kept: Kept

    @classmethod
    def of(
        cls,
        recorder: Recorder,
        arrived: Sequence[Tensor | None],
        direct: Sequence[Tensor | None],
        kept: Kept,
    ) -> _Seen:
        return cls(
            [use for use, g in zip(recorder.recorded, arrived, strict=True) if g is not None],
            [leaf for leaf, g in enumerate(direct) if g is not None],
            recorder.unexplained,
            recorder.output_overwritten(),
            kept,
        )


class _Returned(NamedTuple):
    """The tensors that a run returns, each with a leading unit dimension."""

    loss: Tensor
    weight: list[Tensor]
    metrics: dict[str, Tensor]
    saved: list[tuple[Tensor, ...]]
    grads: list[Tensor]
    direct: list[Tensor]
    written: list[Tensor]


def _tensors(
    one: UnitLoss,
    recorded: Sequence[Recorded],
    arrived: Sequence[Tensor | None],
    direct: Sequence[Tensor | None],
    written: list[Tensor],
) -> tuple[Any, ...]:
    """What a run returns beside the loss, without a None: vmap returns nothing but tensors."""
    return (
        [] if one.weight is None else [one.weight],
        dict(one.metrics),
        [use.saved for use in recorded],
        [g for g in arrived if g is not None],
        [g for g in direct if g is not None],
        written,
    )


def ghost(call: Call) -> Units:
    """The units of a batch, by rules where there are some and by autograd where there are none."""
    return run(call, rules())


def run(call: Call, rules: Mapping[Any, Rule]) -> Units:
    """The same with the rules given."""
    seen, returned = _forward_and_backward(call, rules, copies=False)
    if seen.output_overwritten:
        seen, returned = _forward_and_backward(call, rules, copies=True)
    return _collect(call.params, seen, returned)


def _forward_and_backward(
    call: Call, rules: Mapping[Any, Rule], copies: bool
) -> tuple[_Seen, _Returned]:
    leaves, structure = tree.flatten(call.params)
    examples, batch_structure = tree.flatten(call.batch)
    names, keep_graph = tree.paths(call.params), differentiating()
    seen: list[_Seen] = []

    def unit(example: list[Tensor], key: Key | None) -> _Returned:
        level = max(batch_levels(example[0]))  # that of the vmap below, the innermost there is

        def observed(own: list[Tensor], twins: list[Tensor]) -> tuple[Tensor, tuple[Any, ...]]:
            recorder = Recorder(own, twins, rules, names, copies)
            given = tree.unflatten(batch_structure, example)
            with explained():
                with recorder, Guard(None, {}, {}):
                    one = unit_loss(call, tree.unflatten(structure, own), given, key)
                recorder.refuse_overwritten()
                # Under autocast, torch's fused backward of group_norm fails in vmap on the mixed
                # dtypes (2.13); the differentiable one, which a kept graph asks for, does not.
                keep = keep_graph or recorder.autocast
                arrived, direct = _backward(one.loss, recorder.recorded, own, keep)
            kept, written = split_written(
                call.buffers, one.buffers, lambda x: level in batch_levels(x)
            )
            seen[:] = [_Seen.of(recorder, arrived, direct, kept)]
            return one.loss, _tensors(one, seen[0].recorded, arrived, direct, written)

        loss, _, rest = torch.func.vjp(observed, leaves, leaves, has_aux=True)  # type: ignore[misc]  # three with has_aux
        return _Returned(loss, *rest)

    axes = (call.unit_axis or 0, None if call.keys is None else 0)
    returned = torch.vmap(unit, in_dims=axes)(examples, call.keys)
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


def _collect(params: Params, seen: _Seen, returned: _Returned) -> Units:
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
    new_buffers = seen.kept.joined([written[0] for written in returned.written])
    weight = returned.weight[0] if returned.weight else None
    return Units(returned.loss, weight, returned.metrics, new_buffers, gradients)
