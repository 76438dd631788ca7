"""RAdam (Liu et al. 2019, arXiv:1908.03265): Adam that waits until its variance is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._adam import AdamState
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._hyper import Hyper, check_betas, check_range, power, value_at, zero_count
from funcloop.optim._leaves import add_square, map_leaves, safe_sqrt, zeros_like
from funcloop.optim._scale import scale, scale_by_learning_rate


def scale_by_radam(betas: tuple[Hyper, Hyper] = (0.9, 0.999), eps: Hyper = 1e-8) -> Transform:
    """RAdam's direction, as torch.optim.RAdam computes it: plain momentum while rho_t <= 5.

    Args:
        betas: Decay of the two moments: floats, 0-d tensors, or schedules.
        eps: Added to the root before its bias correction, as torch.optim.RAdam does.

    >>> import torch
    >>> tx, params = scale_by_radam(), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(2.)}
    """
    check_betas(betas)
    check_range("eps", eps)

    def init(params: Params, /) -> OptState:
        return AdamState(zero_count(params), zeros_like(params), zeros_like(params))

    def update(
        updates: PyTree, state: AdamState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        b1, b2, small = (value_at(hyper, state.step) for hyper in (*betas, eps))
        step = state.step + 1
        adaptive, factor = _rectification(b2, step)
        updates, m, v = map_leaves(
            _direction,
            updates,
            state=[state.exp_avg, state.exp_avg_sq],
            scalars=[
                *(1 - b1, b2, 1 - b2, small),
                *(adaptive.to(torch.float64), factor, 1 - power(b1, step)),
            ],
        )
        return updates, AdamState(step, m, v)

    return Transform(init, update)


def _rectification(b2: float | Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the second moment is used yet, and the factor in front of it; both 0-d."""
    left, length = power(b2, step), 2 / (1 - b2) - 1
    now = length - 2 * step * left / (1 - left)
    adaptive = now > 5.0
    now = torch.where(adaptive, now, length)  # keeps the root real where it is not used
    rectified = (now - 4) * (now - 2) * length / ((length - 4) * (length - 2) * now)
    return adaptive, (rectified * (1 - left)).sqrt()


def _direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    new1: Any,
    old2: Any,
    new2: Any,
    eps: Any,
    adaptive: Tensor,
    factor: Tensor,
    correction: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    m = torch.lerp(m, g, new1)
    v = add_square(v * old2, g, new2)
    gain = torch.where(adaptive != 0, factor / (safe_sqrt(v) + eps), 1.0)
    return m / correction * gain, m, v


def radam(
    lr: Hyper = 1e-3,
    betas: tuple[Hyper, Hyper] = (0.9, 0.999),
    eps: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    decoupled_weight_decay: bool = False,
    *,
    maximize: bool = False,
) -> Transform:
    """torch.optim.RAdam.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule; so are the other numbers.
        betas: Decay of the two moments.
        eps: Added to the root.
        weight_decay: Added to the gradient, or decoupled.
        decoupled_weight_decay: Decay as AdamW does.
        maximize: Ascend.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = radam(0.1), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(-0.2000)}
    """
    return chain(
        *([scale(-1.0)] if maximize else []),
        decayed(scale_by_radam(betas, eps), weight_decay, decoupled_weight_decay),
        scale_by_learning_rate(lr),
    )
