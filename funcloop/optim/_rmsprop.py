"""RMSprop (Hinton 2012), plain and centered (Graves 2013, arXiv:1308.0850)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._hyper import Hyper, check_range, is_zero, power, value_at, zero_count
from funcloop.optim._leaves import add_square, map_leaves, safe_sqrt, zeros_like
from funcloop.optim._scale import scale, scale_by_learning_rate
from funcloop.optim._trace import trace


class RmsState(NamedTuple):
    """State of `scale_by_rms`.

    Attributes:
        step: Updates so far, int64, 0-d.
        square_avg: Decayed mean of squares, with the structure of the params, at least float32.
    """

    step: Tensor
    square_avg: PyTree


class StddevState(NamedTuple):
    """State of `scale_by_stddev`.

    Attributes:
        step: Updates so far, int64, 0-d.
        square_avg: Decayed mean of squares, with the structure of the params, at least float32.
        grad_avg: Decayed mean, the same.
    """

    step: Tensor
    square_avg: PyTree
    grad_avg: PyTree


def scale_by_rms(
    alpha: Hyper = 0.99, eps: Hyper = 1e-8, bias_correction: bool = False
) -> Transform:
    """`g / (sqrt(v) + eps)` with v the decayed mean of squares, which starts at zero.

    Args:
        alpha: Decay of the mean: a float, a 0-d tensor, or a schedule.
        eps: Added outside the root, as torch.optim.RMSprop does.
        bias_correction: Divide v by `1 - alpha ** t`: Adam without a first moment.

    >>> import torch
    >>> tx, params = scale_by_rms(0.75), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(3.0)}, tx.init(params), params)[0]
    {'w': tensor(2.)}
    """
    check_range("alpha", alpha)
    check_range("eps", eps)

    def init(params: Params, /) -> OptState:
        return RmsState(zero_count(params), zeros_like(params))

    def update(
        updates: PyTree, state: RmsState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        decay, small = value_at(alpha, state.step), value_at(eps, state.step)
        step = state.step + 1
        slope = (1 - power(decay, step)) ** -0.5 if bias_correction else 1.0
        updates, square_avg = map_leaves(
            _by_rms, updates, state=[state.square_avg], scalars=[decay, 1 - decay, slope, small]
        )
        return updates, RmsState(step, square_avg)

    return Transform(init, update)


def _by_rms(
    g: Tensor, v: Tensor, old: Any, new: Any, slope: Any, eps: Any
) -> tuple[Tensor, Tensor]:
    v = add_square(v * old, g, new)
    return g / (safe_sqrt(v) * slope + eps), v


def scale_by_stddev(alpha: Hyper = 0.99, eps: Hyper = 1e-8) -> Transform:
    """`g / (sqrt(v - m * m) + eps)`: RMSprop's centered form.

    Args:
        alpha: Decay of both means: a float, a 0-d tensor, or a schedule.
        eps: Added outside the root.

    >>> import torch
    >>> tx, params = scale_by_stddev(0.5), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(3.0)}, tx.init(params), params)[0]
    {'w': tensor(2.)}
    """
    check_range("alpha", alpha)
    check_range("eps", eps)

    def init(params: Params, /) -> OptState:
        return StddevState(zero_count(params), zeros_like(params), zeros_like(params))

    def update(
        updates: PyTree, state: StddevState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        decay, small = value_at(alpha, state.step), value_at(eps, state.step)
        updates, square_avg, grad_avg = map_leaves(
            _by_stddev,
            updates,
            state=[state.square_avg, state.grad_avg],
            scalars=[decay, 1 - decay, small],
        )
        return updates, StddevState(state.step + 1, square_avg, grad_avg)

    return Transform(init, update)


def _by_stddev(
    g: Tensor, v: Tensor, m: Tensor, old: Any, new: Any, eps: Any
) -> tuple[Tensor, Tensor, Tensor]:
    v = add_square(v * old, g, new)
    m = torch.lerp(m, g, new)
    return g / (safe_sqrt(torch.addcmul(v, m, m, value=-1)) + eps), v, m


def rmsprop(
    lr: Hyper = 1e-2,
    alpha: Hyper = 0.99,
    eps: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    momentum: Hyper = 0.0,
    centered: bool = False,
    *,
    maximize: bool = False,
) -> Transform:
    """torch.optim.RMSprop.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule; so are the other numbers.
        alpha: Decay of the mean of squares.
        eps: Added outside the root.
        weight_decay: Added to the gradient.
        momentum: Of the scaled gradients; a plain 0 keeps no buffer.
        centered: Divide by the standard deviation.
        maximize: Ascend.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = rmsprop(0.1, alpha=0.9, eps=0.1), {"w": torch.tensor(1.0)}
    >>> updates, _ = tx.update({"w": torch.tensor(1.0)}, tx.init(params), params)
    >>> round(1 + updates["w"].item(), 6)
    0.759747
    """
    scaling = scale_by_stddev if centered else scale_by_rms
    return chain(
        *([scale(-1.0)] if maximize else []),
        decayed(scaling(alpha, eps), weight_decay),
        *([] if is_zero(momentum) else [trace(momentum)]),
        scale_by_learning_rate(lr),
    )
