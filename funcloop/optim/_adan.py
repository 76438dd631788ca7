"""Adan (Xie et al. 2022, arXiv:2208.06677): moments of gradients and of their differences."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._hyper import Hyper, check_betas, check_range, power, value_at, zero_count
from funcloop.optim._labels import Mask
from funcloop.optim._leaves import map_leaves, safe_sqrt, zeros_like
from funcloop.optim._scale import scale_by_learning_rate


class AdanState(NamedTuple):
    """State of `scale_by_adan`; the trees have the structure of the params, at least float32.

    Attributes:
        step: Updates so far, int64, 0-d.
        exp_avg: Mean of gradients.
        exp_avg_diff: Mean of their differences.
        exp_avg_sq: Mean of squares.
        grad: The last gradient.
    """

    step: Tensor
    exp_avg: PyTree
    exp_avg_diff: PyTree
    exp_avg_sq: PyTree
    grad: PyTree


def scale_by_adan(
    betas: tuple[Hyper, Hyper, Hyper] = (0.98, 0.92, 0.99),
    eps: Hyper = 1e-8,
    eps_root: Hyper = 0.0,
) -> Transform:
    """Adan's direction, as optax.scale_by_adan.

    Args:
        betas: Decay of the means of gradients, differences, and squares: floats, 0-d tensors, or
            schedules.
        eps: Added outside the root.
        eps_root: Added inside the root.

    >>> import torch
    >>> tx, params = scale_by_adan(), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(1.)}
    """
    check_betas(betas)
    check_range("eps", eps)
    check_range("eps_root", eps_root)

    def init(params: Params, /) -> OptState:
        return AdanState(zero_count(params), *(zeros_like(params) for _ in range(4)))

    def update(
        updates: PyTree, state: AdanState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        b1, b2, b3, small, inside = (value_at(h, state.step) for h in (*betas, eps, eps_root))
        step = state.step + 1
        later = (state.step > 0).to(torch.float64)  # there is no difference at the first update
        updates, *moments = map_leaves(
            _direction,
            updates,
            state=state[1:],
            scalars=[
                *(later, 1 - b1, 1 - b2, 1 - b3, small, inside),
                *(1 - power(beta, step) for beta in (b1, b2, b3)),
            ],
        )
        return updates, AdanState(step, *moments)

    return Transform(init, update)


def _direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    n: Tensor,
    last: Tensor,
    later: Tensor,
    new1: Any,
    new2: Any,
    new3: Any,
    eps: Any,
    inside: Any,
    correction1: Tensor,
    correction2: Tensor,
    correction3: Tensor,
) -> tuple[Tensor, ...]:
    difference = (g - last) * later
    m, v = torch.lerp(m, g, new1), torch.lerp(v, difference, new2)
    ahead = g + difference * new2
    n = torch.lerp(n, ahead * ahead, new3)
    direction = m / correction1 + v / correction2 * new2
    return direction / (safe_sqrt(n / correction3 + inside) + eps), m, v, n, g


def adan(
    lr: Hyper = 1e-3,
    betas: tuple[Hyper, Hyper, Hyper] = (0.98, 0.92, 0.99),
    eps: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    eps_root: Hyper = 1e-8,
    mask: Mask | None = None,
) -> Transform:
    """Adan with decoupled decay, as optax.adan.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule; so are the other numbers.
        betas: Decay of the means of gradients, differences, and squares.
        eps: Added outside the root.
        weight_decay: Decoupled decay.
        eps_root: Added inside the root.
        mask: Which leaves decay; see `masked`.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = adan(0.1), {"w": torch.tensor(1.0)}
    >>> tx.update({"w": torch.tensor(2.0)}, tx.init(params), params)[0]
    {'w': tensor(-0.1000)}
    """
    return chain(
        decayed(scale_by_adan(betas, eps, eps_root), weight_decay, decoupled=True, mask=mask),
        scale_by_learning_rate(lr),
    )
