"""Adadelta (Zeiler 2012, arXiv:1212.5701): steps measured by their own past size."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._hyper import Hyper, check_range, value_at, zero_count
from funcloop.optim._leaves import add_square, map_leaves, safe_sqrt, zeros_like
from funcloop.optim._scale import scale, scale_by_learning_rate


class AdadeltaState(NamedTuple):
    """State of `scale_by_adadelta`.

    Attributes:
        step: Updates so far, int64, 0-d.
        square_avg: Decayed mean of squared gradients, with the structure of the params.
        acc_delta: Decayed mean of squared steps, the same; both at least float32.
    """

    step: Tensor
    square_avg: PyTree
    acc_delta: PyTree


def scale_by_adadelta(rho: Hyper = 0.9, eps: Hyper = 1e-6) -> Transform:
    """`g * sqrt(d + eps) / sqrt(v + eps)` with d, v the decayed means of squared steps, gradients.

    Args:
        rho: Decay of both means: a float, a 0-d tensor, or a schedule.
        eps: Added inside both roots, as torch.optim.Adadelta does.

    >>> import torch
    >>> tx, params = scale_by_adadelta(0.75, eps=1.0), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(12.0).sqrt()}, tx.init(params), params)[0]
    {'w': tensor(1.7321)}
    """
    check_range("rho", rho, 0.0, 1.0)
    check_range("eps", eps)

    def init(params: Params, /) -> OptState:
        return AdadeltaState(zero_count(params), zeros_like(params), zeros_like(params))

    def update(
        updates: PyTree, state: AdadeltaState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        decay, small = value_at(rho, state.step), value_at(eps, state.step)
        updates, square_avg, acc_delta = map_leaves(
            _direction,
            updates,
            state=[state.square_avg, state.acc_delta],
            scalars=[decay, 1 - decay, small],
        )
        return updates, AdadeltaState(state.step + 1, square_avg, acc_delta)

    return Transform(init, update)


def _direction(
    g: Tensor, v: Tensor, d: Tensor, old: Any, new: Any, eps: Any
) -> tuple[Tensor, Tensor, Tensor]:
    v = add_square(v * old, g, new)
    step = safe_sqrt(d + eps) / safe_sqrt(v + eps) * g
    return step, v, add_square(d * old, step, new)


def adadelta(
    lr: Hyper = 1.0,
    rho: Hyper = 0.9,
    eps: Hyper = 1e-6,
    weight_decay: Hyper = 0.0,
    *,
    maximize: bool = False,
) -> Transform:
    """torch.optim.Adadelta.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule; so are the other numbers.
        rho: Decay of both means of squares.
        eps: Added inside both roots.
        weight_decay: Added to the gradient.
        maximize: Ascend.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = adadelta(rho=0.75, eps=1.0), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(12.0).sqrt()}, tx.init(params), params)[0]
    {'w': tensor(-1.7321)}
    """
    return chain(
        *([scale(-1.0)] if maximize else []),
        decayed(scale_by_adadelta(rho, eps), weight_decay),
        scale_by_learning_rate(lr),
    )
