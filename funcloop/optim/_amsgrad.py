"""AMSGrad (Reddi et al. 2018, arXiv:1904.09237): Adam with the largest second moment so far."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._hyper import Hyper, check_betas, check_range, power, value_at, zero_count
from funcloop.optim._leaves import add_square, map_leaves, safe_sqrt, zeros_like


class AmsgradState(NamedTuple):
    """State of `scale_by_amsgrad`.

    Attributes:
        step: Updates so far, int64, 0-d.
        exp_avg: First moment, with the structure of the params, at least float32.
        exp_avg_sq: Second moment, the same.
        max_exp_avg_sq: Largest second moment so far, the same.
    """

    step: Tensor
    exp_avg: PyTree
    exp_avg_sq: PyTree
    max_exp_avg_sq: PyTree


def scale_by_amsgrad(betas: tuple[Hyper, Hyper] = (0.9, 0.999), eps: Hyper = 1e-8) -> Transform:
    """Adam's direction with the largest second moment so far in the root, as torch.optim.Adam.

    The maximum is taken before the bias correction (Optax takes it after).

    Args:
        betas: Decay of the two moments: floats, 0-d tensors, or schedules.
        eps: Added outside the root.

    >>> import torch
    >>> tx, params = scale_by_amsgrad(), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(1.0000)}
    """
    check_betas(betas)
    check_range("eps", eps)

    def init(params: Params, /) -> OptState:
        return AmsgradState(zero_count(params), *(zeros_like(params) for _ in range(3)))

    def update(
        updates: PyTree, state: AmsgradState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        b1, b2, small = (value_at(hyper, state.step) for hyper in (*betas, eps))
        step = state.step + 1
        first, second = 1 - power(b1, step), 1 - power(b2, step)
        updates, *moments = map_leaves(
            _direction,
            updates,
            state=state[1:],
            scalars=[1 - b1, b2, 1 - b2, first / second.sqrt(), first * small],
        )
        return updates, AmsgradState(step, *moments)

    return Transform(init, update)


def _direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    top: Tensor,
    new1: Any,
    old2: Any,
    new2: Any,
    slope: Any,
    floor: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    m = torch.lerp(m, g, new1)
    v = add_square(v * old2, g, new2)
    top = torch.maximum(top, v)
    return m / (safe_sqrt(top) * slope + floor), m, v, top
