"""The gradient of the weighted mean loss, and the Estimate that it makes."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ShapeError
from funcloop._loss import (
    evaluate_loss,
    parts_given_by,
    require_parts,
    weighted_mean,
    weights_of,
)
from funcloop._purity import no_outer_graph
from funcloop._pytree import flatten, paths_of, unflatten
from funcloop._types import Batch, Buffers, Estimate, Key, LossFn, Params


def mean_gradient(
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    key: Key,
    scale: Tensor | None = None,
) -> Estimate:
    """The gradient of `sum(weight * losses) / sum(weight)`.

    Args:
        loss_fn: Any LossFn.
        params: Floating or complex leaves.
        buffers: As the loss function takes them.
        batch: As the loss function takes it.
        key: As the loss function takes it.
        scale: What the loss is multiplied by and the gradient divided by, 0-d float32.

    Raises:
        ShapeError: a parameter is not floating, or the loss function breaks its contract.
    """
    leaves, structure = flatten(params)
    for place, leaf in enumerate(leaves):
        if not (leaf.is_floating_point() or leaf.is_complex()):
            raise ShapeError(
                "a gradient is taken with respect to floating params",
                f"{paths_of(structure)[place]} is {leaf.dtype}",
                "keep it in buffers",
            )

    def mean_loss(leaves: list[Tensor]) -> tuple[Tensor, tuple[Tensor, Buffers, dict, Tensor]]:
        params = unflatten(structure, leaves)
        losses, aux = evaluate_loss(loss_fn, params, buffers, batch, key)
        require_parts(losses, aux, cutter)
        weight = weights_of(losses, aux)
        metrics = {name: weighted_mean(m, weight) for name, m in aux.metrics.items()}
        mean = weighted_mean(losses, weight)
        rest = mean, aux.buffers, metrics, weight.sum()
        return mean if scale is None else mean * scale.to(mean.dtype), rest

    with no_outer_graph(), parts_given_by(None) as cutter:
        grads, (loss, *rest) = torch.func.grad(mean_loss, has_aux=True)(leaves)
        if scale is not None:
            # As torch.amp.GradScaler inverts it.
            inverse = scale.double().reciprocal().float()
            grads = [(g * inverse).to(g.dtype) for g in grads]
    return Estimate(unflatten(structure, grads), loss, *rest)
