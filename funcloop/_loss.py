"""Calls a LossFn and holds it to its contract: one loss for each example."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from funcloop._errors import ArgumentError, ShapeError
from funcloop._types import Aux, Batch, Buffers, Estimate, Key, LossFn, Params

#: What is giving a GradFn parts of a batch, where that is so.
_cutting: ContextVar[str | None] = ContextVar("cutting", default=None)


@contextlib.contextmanager
def parts_given_by(what: str | None) -> Iterator[str | None]:
    """Inside: a GradFn is given parts of a batch by `what`; gives who did so outside.

    Each part of an averaged loss would weigh one, whatever its number of examples: the mean of
    means that the field has so often taken for the mean. A GradFn enters with None: the losses that
    it takes inside of its own (of tasks) are its own affair.
    """
    before = _cutting.get()
    token = _cutting.set(what)
    try:
        yield before
    finally:
        _cutting.reset(token)


def require_parts(losses: Tensor, aux: Aux, what: str | None) -> None:
    """Refuse an averaged loss that does not say what it weighs, where `what` gives parts.

    Raises:
        ShapeError: the loss is 0-d and has no weight.
    """
    if what is not None and losses.ndim == 0 and aux.weight is None:
        require_vector(losses, what)


def evaluate_loss(
    loss_fn: LossFn, params: Params, buffers: Buffers, batch: Batch, key: Key
) -> tuple[Tensor, Aux]:
    """The losses as returned, and an Aux whatever the function returned beside them.

    Raises:
        ShapeError: the losses are neither (B,) nor 0-d, or a metric or weight differs in shape.
        ArgumentError: it is no LossFn but a GradFn.
    """
    result = loss_fn(params, buffers, batch, key)
    if isinstance(result, Estimate):
        raise ArgumentError(
            "a loss function returns losses",
            "an Estimate, which a GradFn returns",
            "give the loss function that the GradFn was made of, and wrap this around it",
        )
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
