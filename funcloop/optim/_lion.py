"""Lion (Chen et al. 2023, arXiv:2302.06675): the sign of a momentum."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._hyper import Hyper, check_betas, value_at, zero_count
from funcloop.optim._labels import Mask
from funcloop.optim._leaves import map_leaves, zeros_like
from funcloop.optim._scale import scale_by_learning_rate


class LionState(NamedTuple):
    """State of `scale_by_lion`.

    Attributes:
        step: Updates so far, int64, 0-d.
        exp_avg: Momentum, with the structure of the params, at least float32.
    """

    step: Tensor
    exp_avg: PyTree


def scale_by_lion(betas: tuple[Hyper, Hyper] = (0.9, 0.99)) -> Transform:
    """`sign(beta1 * m + (1 - beta1) * g)`, then `m = beta2 * m + (1 - beta2) * g`.

    Args:
        betas: Weights of the momentum in the step and in its own average: floats, 0-d tensors, or
            schedules.

    >>> import torch
    >>> tx, params = scale_by_lion(), {"w": torch.tensor([1.0, 1.0])}
    >>> tx.update({"w": torch.tensor([2.0, -3.0])}, tx.init(params), params)[0]
    {'w': tensor([ 1., -1.])}
    """
    check_betas(betas)

    def init(params: Params, /) -> OptState:
        return LionState(zero_count(params), zeros_like(params))

    def update(
        updates: PyTree, state: LionState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        b1, b2 = (value_at(beta, state.step) for beta in betas)
        updates, m = map_leaves(
            lambda g, m, new1, new2: (torch.lerp(m, g, new1).sign(), torch.lerp(m, g, new2)),
            updates,
            state=[state.exp_avg],
            scalars=[1 - b1, 1 - b2],
        )
        return updates, LionState(state.step + 1, m)

    return Transform(init, update)


def lion(
    lr: Hyper = 1e-4,
    betas: tuple[Hyper, Hyper] = (0.9, 0.99),
    weight_decay: Hyper = 1e-3,
    mask: Mask | None = None,
) -> Transform:
    """Lion with decoupled weight decay, as optax.lion.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule; so are the other numbers.
        betas: Weights of the momentum in the step and in its own average.
        weight_decay: Decoupled decay.
        mask: Which leaves decay; see `masked`.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = lion(0.1, weight_decay=0.0), {"w": torch.tensor([1.0, 1.0])}
    >>> tx.update({"w": torch.tensor([2.0, -3.0])}, tx.init(params), params)[0]
    {'w': tensor([-0.1000,  0.1000])}
    """
    return chain(
        decayed(scale_by_lion(betas), weight_decay, decoupled=True, mask=mask),
        scale_by_learning_rate(lr),
    )
