"""Averaged SGD (Polyak & Juditsky 1992), with torch.optim.ASGD's decaying step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import add_decayed_weights
from funcloop.optim._hyper import Hyper, as_tensor, check_range, is_zero, value_at, zero_count
from funcloop.optim._leaves import map_leaves, zeros_like
from funcloop.optim._scale import scale


class AsgdState(NamedTuple):
    """State of `asgd`.

    Attributes:
        step: Updates so far, int64, 0-d.
        eta: Step size of the next update, 0-d.
        mu: Weight of the next params in the average, 0-d.
        ax: The averaged params, at least float32; zeros before the first update.
    """

    step: Tensor
    eta: Tensor
    mu: Tensor
    ax: PyTree


def _average(
    lr: Hyper, lambd: float | Tensor, alpha: float | Tensor, t0: float | Tensor
) -> Transform:
    """ASGD without weight decay: the step and the average."""

    def init(params: Params, /) -> OptState:
        step = zero_count(params)
        eta = as_tensor(value_at(lr, step), step).to(torch.float64)
        return AsgdState(step, eta, torch.ones_like(eta), zeros_like(params))

    def update(
        updates: PyTree, state: AsgdState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        step, rate = state.step + 1, value_at(lr, state.step)
        updates, ax = map_leaves(
            _direction,
            updates,
            state=[state.ax],
            reads=[params],
            scalars=[state.eta, lambd, state.mu],
        )
        eta = rate / (1 + lambd * rate * step.to(torch.float64)) ** alpha
        mu = 1 / (step.to(torch.float64) - t0).clamp_min(1.0)
        return updates, AsgdState(step, eta, mu, ax)

    return Transform(init, update)


def _direction(
    g: Tensor, ax: Tensor, p: Tensor, eta: Tensor, lambd: Any, mu: Tensor
) -> tuple[Tensor, Tensor]:
    update = -eta * (g + lambd * p)
    return update, torch.lerp(ax, p + update, mu)


def asgd(
    lr: Hyper = 1e-2,
    lambd: float | Tensor = 1e-4,
    alpha: float | Tensor = 0.75,
    t0: float | Tensor = 1e6,
    weight_decay: Hyper = 0.0,
    *,
    maximize: bool = False,
) -> Transform:
    """torch.optim.ASGD: `p -= eta * (g + lambd * p)`, with the average of p kept in the state.

    The step size eta falls as `lr / (1 + lambd * lr * t) ** alpha`. A scheduled lr acts one update
    late, as it does in torch. `asgd_average(state)` gives the averaged params.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule.
        lambd: Decay.
        alpha: Power of the falling step size.
        t0: The update after which averaging begins.
        weight_decay: Added to the gradient.
        maximize: Ascend.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = asgd(0.1), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(-0.2000)}
    """
    check_range("lr", lr)
    return chain(
        *([scale(-1.0)] if maximize else []),
        *([] if is_zero(weight_decay) else [add_decayed_weights(weight_decay)]),
        _average(lr, lambd, alpha, t0),
    )


def asgd_average(state: OptState, params: Params) -> Params:
    """The averaged params that an `asgd` state holds, in the dtypes of `params`.

    >>> import torch
    >>> tx, params = asgd(0.1), {"w": torch.tensor(1.0)}
    >>> _, state = tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)
    >>> asgd_average(state, params)
    {'w': tensor(0.8000)}
    """
    return tree.map(lambda p, average: average.to(p.dtype), params, state[-1].ax)
