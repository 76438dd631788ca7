"""Units: what is clipped as one. Usually an example; with `unit_axis`, all examples of a user."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from funcloop import random, tree
from funcloop._errors import ShapeError
from funcloop._loss import evaluate_loss, require_vector, weighted_mean, weights_of
from funcloop._types import Aux, Batch, Buffers, Key, LossFn, Metrics, Params


class Call(NamedTuple):
    """A loss function and what it is called with, unit by unit.

    Attributes:
        loss_fn: Losses of shape (B,).
        params: The parameters.
        buffers: The buffers.
        batch: All units.
        keys: One for each unit, (B, 2); None where nothing is drawn.
        unit_axis: The dimension of the batch's leaves that counts units; None is the first, where
            each example is one.
    """

    loss_fn: LossFn
    params: Params
    buffers: Buffers
    batch: Batch
    keys: Key | None
    unit_axis: int | None


class UnitLoss(NamedTuple):
    """What one unit gives.

    Attributes:
        loss: 0-d.
        weight: 0-d, or None for one.
        metrics: 0-d each.
        buffers: The new buffers.
    """

    loss: Tensor
    weight: Tensor | None
    metrics: Metrics
    buffers: Buffers


def unit_loss(call: Call, params: Params, unit: Batch, key: Key | None) -> UnitLoss:
    """The loss of one unit: of a batch of one example, or the weighted mean over its examples.

    Raises:
        ShapeError: the losses are averaged over the batch, or their number is not that of the
            examples.
    """
    batch = tree.map(lambda x: x[None], unit) if call.unit_axis is None else unit
    losses, aux = evaluate_loss(call.loss_fn, params, call.buffers, batch, key)  # type: ignore[arg-type]  # None where nothing is drawn
    require_vector(losses, "a per-sample gradient")
    examples = next((x.shape[0] for x in tree.leaves(batch)), 1)
    if losses.shape[0] != examples:
        raise ShapeError(
            "a loss function returns one loss for each example of its batch",
            f"{losses.shape[0]} losses for a batch of {examples}",
            "reduce each example's losses to one",
        )
    if call.unit_axis is None:
        weight = None if aux.weight is None else aux.weight[0]
        return UnitLoss(losses[0], weight, {k: m[0] for k, m in aux.metrics.items()}, aux.buffers)
    return _mean_over_examples(losses, aux)


def _mean_over_examples(losses: Tensor, aux: Aux) -> UnitLoss:
    """A unit weighs one, however many examples it has, and nothing when none of them weighs."""
    weight = weights_of(losses, aux)
    return UnitLoss(
        weighted_mean(losses, weight).to(losses.dtype),
        (weight != 0).any().to(weight.dtype),
        {name: weighted_mean(m, weight) for name, m in aux.metrics.items()},
        aux.buffers,
    )


def count_units(batch: Batch, unit_axis: int | None) -> int:
    """How many units a batch has.

    Raises:
        ShapeError: the leaves disagree, one has no such dimension, or there are none.
    """
    axis = unit_axis or 0
    leaves = tree.items(batch)
    sizes = {x.shape[axis] for _, x in leaves if x.ndim > axis}
    if len(sizes) != 1 or any(x.ndim <= axis for _, x in leaves):
        found = ", ".join(f"{path or 'the batch'} {tuple(x.shape)}" for path, x in leaves)
        raise ShapeError(
            f"every leaf of a batch has one entry a unit in dimension {axis}",
            found or "a batch without leaves",
            "put what is shared by all examples into buffers",
        )
    return sizes.pop()


def unit_keys(key: Key | None, units: int) -> Key | None:
    """One key a unit, (B, 2): that of unit n is `fold_in(key, n)` and does not depend on B."""
    if key is None:
        return None
    return random.fold_in(key, torch.arange(units, device=key.device))
