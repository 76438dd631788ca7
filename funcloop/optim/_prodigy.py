"""Prodigy (Mishchenko & Defazio 2023, arXiv:2306.06101): Adam that estimates its learning rate."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._hyper import Hyper, check_betas, check_range, power, value_at, zero_count
from funcloop.optim._leaves import (
    add_square,
    map_leaves,
    refuse_complex,
    safe_sqrt,
    wide_copy,
    zeros_like,
)


class ProdigyState(NamedTuple):
    """State of `prodigy`; the trees have the structure of the params, at least float32.

    Attributes:
        step: Updates so far, int64, 0-d.
        estimate: The estimated learning rate, float64, 0-d.
        numerator: Weighted numerator of the estimate, float64, 0-d.
        exp_avg: First moment.
        exp_avg_sq: Second moment.
        grad_sum: Weighted sum of gradients.
        start: The params at the start.
    """

    step: Tensor
    estimate: Tensor
    numerator: Tensor
    exp_avg: PyTree
    exp_avg_sq: PyTree
    grad_sum: PyTree
    start: PyTree


def prodigy(
    lr: Hyper = 1.0,
    betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
    beta3: float | Tensor | None = None,
    eps: float = 1e-8,
    estim_lr0: float = 1e-6,
    estim_lr_coef: float = 1.0,
    weight_decay: Hyper = 0.0,
    safeguard_warmup: bool = False,
) -> Transform:
    """Prodigy with decoupled decay, as optax.contrib.prodigy. Keep `lr` at 1, or schedule from 1.

    Args:
        lr: Factor of the estimated learning rate: a float, a 0-d tensor, or a schedule.
        betas: Decay of the two moments.
        beta3: Decay of the estimate's sums; None is the root of betas[1].
        eps: Added outside the root.
        estim_lr0: First estimate, which has to be too small.
        estim_lr_coef: Factor of later estimates.
        weight_decay: Decoupled decay.
        safeguard_warmup: Leave lr out of the estimate's denominator.

    Raises:
        ArgumentError: a number is out of range.
        UnsupportedError: a param is complex.

    >>> import torch
    >>> tx, params = prodigy(), {"w": torch.tensor(1.0)}
    >>> updates, _ = tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)
    >>> round(updates["w"].item() * 1e6, 3)
    -1.0
    """
    check_range("lr", lr)
    check_betas(betas)
    check_range("estim_lr0", estim_lr0, open_low=True)
    b1, b2 = betas
    b3 = b2**0.5 if beta3 is None else beta3

    def init(params: Params, /) -> OptState:
        refuse_complex(params, "prodigy")
        step = zero_count(params)
        estimate = torch.full_like(step, estim_lr0, dtype=torch.float64)
        return ProdigyState(
            step,
            estimate,
            torch.zeros_like(estimate),
            exp_avg=zeros_like(params),
            exp_avg_sq=zeros_like(params),
            grad_sum=zeros_like(params),
            start=wide_copy(params),
        )

    def update(
        updates: PyTree, state: ProdigyState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        step, d = state.step + 1, state.estimate
        rate = d * value_at(lr, state.step) * (1 - power(b2, step)).sqrt() / (1 - power(b1, step))
        weight = d if safeguard_warmup else rate
        _, m, v, total = map_leaves(
            _moments,
            updates,
            state=[state.exp_avg, state.exp_avg_sq, state.grad_sum],
            scalars=[d, 1 - b1, b2, 1 - b2, b3, weight * d / estim_lr0],
        )
        moved = _inner(updates, state.start, params)
        numerator = b3 * state.numerator + d / estim_lr0 * rate * moved
        size = _absolute_sum(total, step)
        found = estim_lr_coef * numerator / torch.where(size > 0, size, 1.0)
        estimate = torch.where(size > 0, torch.maximum(d, found), d)
        (updates,) = map_leaves(
            _step,
            updates,
            reads=[m, v, params],
            scalars=[rate, estimate * eps, value_at(weight_decay, state.step)],
        )
        return updates, ProdigyState(step, estimate, numerator, m, v, total, state.start)

    return Transform(init, update)


def _moments(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    total: Tensor,
    d: Tensor,
    new1: Any,
    old2: Any,
    new2: Any,
    old3: Any,
    weight: Tensor,
) -> tuple[Tensor, ...]:
    scaled = g * d
    m = torch.lerp(m, scaled, new1)
    v = add_square(v * old2, scaled, new2)
    return g, m, v, total * old3 + g * weight


def _step(
    g: Tensor, m: Tensor, v: Tensor, p: Tensor, rate: Tensor, small: Tensor, decay: Any
) -> Tensor:
    return -rate * (m / (safe_sqrt(v) + small) + decay * p)


def _inner(updates: PyTree, start: Params, params: Params) -> Tensor:
    """`sum(g * (start - p))` over all leaves, float64, 0-d."""
    (products,) = map_leaves(lambda g, p0, p: g * (p0 - p), updates, reads=[start, params])
    leaves = [leaf.sum(dtype=torch.float64) for leaf in tree.leaves(products)]
    return torch.stack(leaves).sum() if leaves else torch.zeros((), dtype=torch.float64)


def _absolute_sum(of: PyTree, like: Tensor) -> Tensor:
    """Sum of absolute values over all leaves, float64, 0-d."""
    leaves = [leaf.abs().sum(dtype=torch.float64) for leaf in tree.leaves(of)]
    return torch.stack(leaves).sum() if leaves else torch.zeros_like(like, dtype=torch.float64)
