"""Adamax (Kingma & Ba 2014, arXiv:1412.6980): Adam with an infinity norm in the denominator."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._hyper import Hyper, check_betas, check_range, power, value_at, zero_count
from funcloop.optim._leaves import map_leaves, zeros_like
from funcloop.optim._scale import scale, scale_by_learning_rate


class AdamaxState(NamedTuple):
    """State of `scale_by_adamax`.

    Attributes:
        step: Updates so far, int64, 0-d.
        exp_avg: First moment, with the structure of the params, at least float32.
        exp_inf: Decayed maximum of absolute gradients, the same.
    """

    step: Tensor
    exp_avg: PyTree
    exp_inf: PyTree


def scale_by_adamax(betas: tuple[Hyper, Hyper] = (0.9, 0.999), eps: Hyper = 1e-8) -> Transform:
    """`m_hat / u` with `u = max(beta2 * u, |g| + eps)`, as torch.optim.Adamax.

    Args:
        betas: Decay of the moment and of the maximum: floats, 0-d tensors, or schedules.
        eps: Added to the absolute gradient.

    >>> import torch
    >>> tx, params = scale_by_adamax(), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(1.)}
    """
    check_betas(betas)
    check_range("eps", eps)

    def init(params: Params, /) -> OptState:
        return AdamaxState(zero_count(params), zeros_like(params), zeros_like(params))

    def update(
        updates: PyTree, state: AdamaxState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        b1, b2, small = (value_at(hyper, state.step) for hyper in (*betas, eps))
        step = state.step + 1
        updates, m, top = map_leaves(
            _direction,
            updates,
            state=[state.exp_avg, state.exp_inf],
            scalars=[1 - b1, b2, small, 1 - power(b1, step)],
        )
        return updates, AdamaxState(step, m, top)

    return Transform(init, update)


def _direction(
    g: Tensor, m: Tensor, top: Tensor, new1: Any, old2: Any, eps: Any, correction: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    m = torch.lerp(m, g, new1)
    top = torch.maximum(top * old2, g.abs() + eps)
    # With eps zero and only zero gradients so far the quotient is 0 / tiny, not 0 / 0.
    return m / (top.clamp_min(torch.finfo(top.dtype).tiny) * correction), m, top


def adamax(
    lr: Hyper = 2e-3,
    betas: tuple[Hyper, Hyper] = (0.9, 0.999),
    eps: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    *,
    maximize: bool = False,
) -> Transform:
    """torch.optim.Adamax.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule; so are the other numbers.
        betas: Decay of the moment and of the maximum.
        eps: Added to the absolute gradient.
        weight_decay: Added to the gradient.
        maximize: Ascend.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = adamax(0.1), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(-0.1000)}
    """
    return chain(
        *([scale(-1.0)] if maximize else []),
        decayed(scale_by_adamax(betas, eps), weight_decay),
        scale_by_learning_rate(lr),
    )
