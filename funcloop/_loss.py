"""Calls a LossFn and holds it to its contract: one loss for each example."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ShapeError
from funcloop._types import Aux, Batch, Buffers, Key, LossFn, Params


def evaluate_loss(
    loss_fn: LossFn, params: Params, buffers: Buffers, batch: Batch, key: Key
) -> tuple[Tensor, Aux]:
    """The losses as returned, and an Aux whatever the function returned beside them.

    Raises:
        ShapeError: the losses are neither (B,) nor 0-d, or a metric or weight differs in shape.
    """
    result = loss_fn(params, buffers, batch, key)
    losses, aux = result if isinstance(result, tuple) else (result, Aux(buffers))
    if losses.ndim > 1:
        raise ShapeError(
            "a loss function returns one loss for each example, shape (B,)",
            f"losses of shape {tuple(losses.shape)}",
            "average over the other dimensions, e.g. losses.flatten(1).mean(1)",
        )
    for name, value in {**aux.metrics, "weight": aux.weight}.items():
        if value is not None and value.shape != losses.shape:
            raise ShapeError(
                "metrics and weight have one value for each example, as the losses have",
                f"{name} of shape {tuple(value.shape)} beside losses of {tuple(losses.shape)}",
                "return them unreduced; funcloop does the averaging",
            )
    return losses, aux


def require_vector(losses: Tensor, where: str) -> Tensor:
    """The losses, refused where they are already averaged.

    Raises:
        ShapeError: the loss is 0-d.
    """
    if losses.ndim != 1:
        raise ShapeError(
            f"{where} needs one loss for each example, shape (B,)",
            f"a loss of shape {tuple(losses.shape)}",
            'leave the averaging to funcloop: reduction="none"',
        )
    return losses


def weights_of(losses: Tensor, aux: Aux) -> Tensor:
    """Weight of each example in at least float32, shape of the losses."""
    wide = torch.promote_types(losses.dtype, torch.float32)
    if aux.weight is None:
        return torch.ones(losses.shape, dtype=wide, device=losses.device)
    return aux.weight.to(wide)


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """`sum(weight * values) / sum(weight)`, 0-d in at least float32; zero where nothing weighs.

    An example of weight zero never contributes, also not a NaN in the value.
    """
    wide = torch.promote_types(values.dtype, weight.dtype)
    total = weight.sum()
    kept = torch.where(weight == 0, 0, values.to(wide) * weight)
    return kept.sum() / torch.where(total == 0, 1, total)
