"""NAdam (Dozat 2016): Adam with Nesterov's look-ahead and a warming momentum."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._hyper import Hyper, check_betas, check_range, power, value_at, zero_count
from funcloop.optim._leaves import add_square, map_leaves, safe_sqrt, zeros_like
from funcloop.optim._scale import scale, scale_by_learning_rate


class NadamState(NamedTuple):
    """State of `scale_by_nadam`.

    Attributes:
        step: Updates so far, int64, 0-d.
        mu_product: Product of the momenta so far, float64, 0-d.
        exp_avg: First moment, with the structure of the params, at least float32.
        exp_avg_sq: Second moment, the same.
    """

    step: Tensor
    mu_product: Tensor
    exp_avg: PyTree
    exp_avg_sq: PyTree


def scale_by_nadam(
    betas: tuple[Hyper, Hyper] = (0.9, 0.999), eps: Hyper = 1e-8, momentum_decay: Hyper = 4e-3
) -> Transform:
    """NAdam's direction, as torch.optim.NAdam computes it.

    Args:
        betas: Decay of the two moments: floats, 0-d tensors, or schedules.
        eps: Added outside the root.
        momentum_decay: Speed at which the momentum rises from half of betas[0] to betas[0].

    >>> import torch
    >>> tx, params = scale_by_nadam(), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(1.0565)}
    """
    check_betas(betas)
    check_range("eps", eps)
    check_range("momentum_decay", momentum_decay)

    def init(params: Params, /) -> OptState:
        step = zero_count(params)
        product = torch.ones_like(step, dtype=torch.float64)
        return NadamState(step, product, zeros_like(params), zeros_like(params))

    def update(
        updates: PyTree, state: NadamState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        b1, b2, small, decay = (value_at(h, state.step) for h in (*betas, eps, momentum_decay))
        step = state.step + 1
        mu = b1 * (1 - 0.5 * power(0.96, step * decay))
        mu_next = b1 * (1 - 0.5 * power(0.96, (step + 1) * decay))
        product = state.mu_product * mu
        updates, m, v = map_leaves(
            _direction,
            updates,
            state=[state.exp_avg, state.exp_avg_sq],
            scalars=[
                *(1 - b1, b2, 1 - b2, 1 - power(b2, step), small),
                (1 - mu) / (1 - product),
                mu_next / (1 - product * mu_next),
            ],
        )
        return updates, NadamState(step, product, m, v)

    return Transform(init, update)


def _direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    new1: Any,
    old2: Any,
    new2: Any,
    correction: Tensor,
    eps: Any,
    of_grad: Tensor,
    of_moment: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    m = torch.lerp(m, g, new1)
    v = add_square(v * old2, g, new2)
    denominator = safe_sqrt(v / correction) + eps
    return (g * of_grad + m * of_moment) / denominator, m, v


def nadam(
    lr: Hyper = 2e-3,
    betas: tuple[Hyper, Hyper] = (0.9, 0.999),
    eps: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    momentum_decay: Hyper = 4e-3,
    decoupled_weight_decay: bool = False,
    *,
    maximize: bool = False,
) -> Transform:
    """torch.optim.NAdam.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule; so are the other numbers.
        betas: Decay of the two moments.
        eps: Added outside the root.
        weight_decay: Added to the gradient, or decoupled.
        momentum_decay: Speed at which the momentum rises.
        decoupled_weight_decay: Decay as AdamW does.
        maximize: Ascend.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = nadam(0.1), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(-0.1056)}
    """
    return chain(
        *([scale(-1.0)] if maximize else []),
        decayed(scale_by_nadam(betas, eps, momentum_decay), weight_decay, decoupled_weight_decay),
        scale_by_learning_rate(lr),
    )
