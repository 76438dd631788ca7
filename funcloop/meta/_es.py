"""Evolution strategies (Salimans et al. 2017, arXiv:1703.03864): gradients without derivatives."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop import random, tree
from funcloop._errors import ArgumentError
from funcloop._loss import (
    evaluate_loss,
    parts_given_by,
    require_parts,
    weighted_mean,
    weights_of,
)
from funcloop._purity import no_outer_graph
from funcloop._pytree import PyTree
from funcloop._types import Batch, Buffers, Estimate, GradFn, Key, LossFn, Params
from funcloop.meta._tasks import over_leading


def es_grad(
    loss_fn: LossFn, *, sigma: float | Tensor = 0.1, pairs: int = 32, chunk: int | None = None
) -> GradFn:
    """The gradient of the loss smoothed by a Gaussian, from antithetic pairs of evaluations.

    `mean over pairs of (L(p + sigma e) - L(p - sigma e)) / (2 sigma) * e` with e ~ N(0, I): its
    mean is the gradient of `E[L(p + sigma e)]`, exact for linear and quadratic losses, and the loss
    need not be differentiable. Loss, buffers and metrics are those at the params themselves.

    Args:
        loss_fn: Any LossFn; both halves of a pair, and all pairs, see the same key.
        sigma: Standard deviation of the perturbation.
        pairs: How many.
        chunk: Pairs that are evaluated at a time; by default all.

    Raises:
        ArgumentError: a number is not positive.

    >>> grad_fn = es_grad(lambda p, buffers, x, key: (p * x).ceil(), pairs=2000, sigma=1.0)
    >>> estimate = grad_fn(torch.tensor(0.2), {}, torch.tensor([1.0]), random.key(0))
    >>> bool((estimate.grads - 1).abs() < 0.1), estimate.loss
    (True, tensor(1.))
    """
    for name, value in (("sigma", sigma), ("pairs", pairs), ("chunk", chunk)):
        if isinstance(value, (int, float)) and not value > 0:
            raise ArgumentError(f"{name} is positive", f"{name}={value}", "give a positive number")

    def grad_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> Estimate:
        noise_key, loss_key = random.split(key).unbind()

        def slope(key: Key) -> PyTree:
            noise = _noise(params, key)
            up, down = (
                _mean(
                    loss_fn, tree.add_scaled(params, sign * sigma, noise), buffers, batch, loss_key
                )
                for sign in (1, -1)
            )
            return tree.map(lambda e: (up - down) / (2 * sigma) * e, noise)

        with no_outer_graph(), parts_given_by(None) as cutter:
            keys = random.split(noise_key, pairs)
            slopes = over_leading(slope, keys, chunk=chunk)
            grads = tree.map(lambda s, p: s.mean(0).to(p.dtype), slopes, params)
            losses, aux = evaluate_loss(loss_fn, params, buffers, batch, loss_key)
            require_parts(losses, aux, cutter)
            weight = weights_of(losses, aux)
            metrics = {name: weighted_mean(m, weight) for name, m in aux.metrics.items()}
            return Estimate(
                grads, weighted_mean(losses, weight), aux.buffers, metrics, weight.sum()
            )

    return grad_fn


def _mean(loss_fn: LossFn, params: Params, buffers: Buffers, batch: Batch, key: Key) -> Tensor:
    losses, aux = evaluate_loss(loss_fn, params, buffers, batch, key)
    return weighted_mean(losses, weights_of(losses, aux))


def _noise(params: Params, key: Key) -> PyTree:
    """Standard normal numbers like the params, at least float32."""
    leaves, structure = tree.flatten(params)
    keys = random.split(key, len(leaves)).unbind()
    return tree.unflatten(
        structure,
        [
            random.normal(k, p.shape, dtype=torch.promote_types(p.dtype, torch.float32))
            for k, p in zip(keys, leaves, strict=True)
        ],
    )
