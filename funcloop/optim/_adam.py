"""Adam (Kingma & Ba 2014, arXiv:1412.6980), AdamW (Loshchilov & Hutter 2017, 1711.05101)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._amsgrad import scale_by_amsgrad
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._hyper import Hyper, check_betas, check_range, power, value_at, zero_count
from funcloop.optim._labels import Mask
from funcloop.optim._leaves import add_square, map_leaves, safe_sqrt, zeros_like
from funcloop.optim._scale import scale, scale_by_learning_rate


class AdamState(NamedTuple):
    """State of `scale_by_adam`.

    Attributes:
        step: Updates so far, int64, 0-d.
        exp_avg: First moment, with the structure of the params, at least float32.
        exp_avg_sq: Second moment, the same.
    """

    step: Tensor
    exp_avg: PyTree
    exp_avg_sq: PyTree


def scale_by_adam(betas: tuple[Hyper, Hyper] = (0.9, 0.999), eps: Hyper = 1e-8) -> Transform:
    """Adam's direction: `m_hat / (sqrt(v_hat) + eps)`, both moments corrected for their bias.

    The derivative of the square root at zero is zero, so that meta-gradients stay finite.

    Args:
        betas: Decay of the two moments: floats, 0-d tensors, or schedules.
        eps: Added outside the root and after the bias correction, as torch.optim does.

    >>> import torch
    >>> tx = scale_by_adam(eps=1e-3)
    >>> params = {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(1e-3)}, tx.init(params), params)[0]
    {'w': tensor(0.5000)}
    """
    check_betas(betas)
    check_range("eps", eps)

    def init(params: Params, /) -> OptState:
        return AdamState(zero_count(params), zeros_like(params), zeros_like(params))

    def update(
        updates: PyTree, state: AdamState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        b1, b2, small = (value_at(hyper, state.step) for hyper in (*betas, eps))
        count = state.step + 1
        first, second = 1 - power(b1, count), 1 - power(b2, count)
        updates, m, v = map_leaves(
            _direction,
            updates,
            state=[state.exp_avg, state.exp_avg_sq],
            scalars=[1 - b1, b2, 1 - b2, first / second.sqrt(), first * small],
        )
        return updates, AdamState(count, m, v)

    return Transform(init, update)


def _direction(
    g: Tensor, m: Tensor, v: Tensor, new1: Any, old2: Any, new2: Any, slope: Tensor, floor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """m_hat / (sqrt(v_hat) + eps) with the corrections gathered: m / (slope * sqrt(v) + floor)."""
    m = torch.lerp(m, g, new1)
    v = add_square(v * old2, g, new2)
    return m / (safe_sqrt(v) * slope + floor), m, v


def adam(
    lr: Hyper = 1e-3,
    betas: tuple[Hyper, Hyper] = (0.9, 0.999),
    eps: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    amsgrad: bool = False,
    *,
    maximize: bool = False,
    decoupled_weight_decay: bool = False,
) -> Transform:
    """torch.optim.Adam: `p -= lr * m_hat / (sqrt(v_hat) + eps)`.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule.
        betas: Decay of the two moments: the same.
        eps: Added outside the root.
        weight_decay: Added to the gradient (L2).
        amsgrad: Divide by the root of the largest second moment so far.
        maximize: Ascend.
        decoupled_weight_decay: Decay as `adamw` does.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = adam(lr=1.0, eps=1e-3), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(1e-3)}, tx.init(params), params)[0]
    {'w': tensor(-0.5000)}
    """
    scaling = scale_by_amsgrad if amsgrad else scale_by_adam
    return chain(
        *([scale(-1.0)] if maximize else []),
        decayed(scaling(betas, eps), weight_decay, decoupled_weight_decay),
        scale_by_learning_rate(lr),
    )


def adamw(
    lr: Hyper = 1e-3,
    betas: tuple[Hyper, Hyper] = (0.9, 0.999),
    eps: Hyper = 1e-8,
    weight_decay: Hyper = 1e-2,
    amsgrad: bool = False,
    *,
    maximize: bool = False,
    mask: Mask | None = None,
) -> Transform:
    """torch.optim.AdamW: Adam with decoupled decay, `p -= lr * (direction + weight_decay * p)`.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule.
        betas: Decay of the two moments: the same.
        eps: Added outside the root.
        weight_decay: Share of the param taken off per unit of learning rate.
        amsgrad: Divide by the root of the largest second moment so far.
        maximize: Ascend; the decay still shrinks.
        mask: Which leaves decay; see `masked`. None is all.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = adamw(0.1, weight_decay=0.1), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(1.0)}, tx.init(params), params)[0]
    {'w': tensor(-0.1100)}
    """
    scaling = scale_by_amsgrad if amsgrad else scale_by_adam
    return chain(
        *([scale(-1.0)] if maximize else []),
        decayed(scaling(betas, eps), weight_decay, decoupled=True, mask=mask),
        scale_by_learning_rate(lr),
    )
