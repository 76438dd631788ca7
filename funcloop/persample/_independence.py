"""Measures whether an example's loss depends on the other examples."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop import random, tree
from funcloop._errors import UnsupportedError
from funcloop._loss import evaluate_loss, require_vector
from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.persample._units import count_units


def check_independence(
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    key: Key | None = None,
    *,
    tolerance: float = 1e-4,
) -> None:
    """Refuses a loss function in which the examples of a batch depend on each other.

    Each example's loss is computed in the whole batch, in the reversed batch, and in halves of it.
    It has to be the same each time, to rounding. Costs four forwards; it looks at values, so it is
    a check to make before training.

    Args:
        loss_fn: Losses of shape (B,).
        params: The parameters.
        buffers: The buffers.
        batch: At least two examples.
        key: The key of the forward; by default that of seed 0. Dropout draws for the whole batch at
            once and is seen as dependence: give a loss function in evaluation mode.
        tolerance: Relative to the largest loss.

    Raises:
        UnsupportedError: a loss changed; it says by how much, and in which company.
        ShapeError: the losses are averaged already.

    >>> import torch
    >>> check_independence(lambda p, b, x, k: x * p, torch.tensor(2.0), {}, torch.arange(4.0))
    >>> check_independence(lambda p, b, x, k: (x - x.mean()) * p, torch.tensor(2.0), {},
    ...                    torch.arange(4.0))
    Traceback (most recent call last):
    funcloop._errors.UnsupportedError: per-sample gradients need examples that do not depend on each
    other: the loss of example 0 is -3 in the batch and -1 in its half. Remedy: normalise within
    the example (GroupNorm, LayerNorm), freeze statistics with train=, or compute what is shared
    outside.
    """
    key = random.key(0) if key is None else key
    size = count_units(batch, None)

    def losses(order: Tensor) -> Tensor:
        chosen = tree.map(lambda x: x[order], batch)
        result = evaluate_loss(loss_fn, params, buffers, chosen, key)[0]
        return require_vector(result, "a per-sample gradient").detach().double()

    everyone = torch.arange(size)
    whole, backwards = losses(everyone), losses(everyone.flip(0)).flip(0)
    halves = torch.cat([losses(part) for part in everyone.tensor_split(2) if len(part)])
    scale = torch.where(whole.isfinite(), whole.abs(), 0).amax() if size else whole.sum()
    for company, other in (("its half", halves), ("the reversed batch", backwards)):
        apart = (whole - other).abs() > tolerance * scale
        different = apart | (whole.isnan() != other.isnan())
        if different.any():
            n = int(different.nonzero()[0])
            raise UnsupportedError(
                "per-sample gradients need examples that do not depend on each other",
                f"the loss of example {n} is {whole[n]:.6g} in the batch and {other[n]:.6g} in "
                f"{company}",
                "normalise within the example (GroupNorm, LayerNorm), freeze statistics with "
                "train=, or compute what is shared outside",
            )
