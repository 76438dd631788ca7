"""Weight decay: a share of each param added to its update."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._hyper import Hyper, check_range, value_at, zero_count
from funcloop.optim._leaves import map_leaves


class DecayState(NamedTuple):
    """`step`: updates so far, int64, 0-d."""

    step: Tensor


def add_decayed_weights(weight_decay: Hyper) -> Transform:
    """Add `weight_decay * param` to every update.

    In front of an optimizer's scaling this is L2 regularisation (torch.optim.Adam); between the
    scaling and the learning rate it is decoupled decay (torch.optim.AdamW).

    Args:
        weight_decay: A float, a 0-d tensor, or a schedule.

    Raises:
        ArgumentError: a plain number is negative.

    >>> import torch
    >>> tx = add_decayed_weights(0.1)
    >>> params = {"w": torch.tensor(10.0)}
    >>> tx.update({"w": torch.tensor(1.0)}, tx.init(params), params)[0]
    {'w': tensor(2.)}
    """
    check_range("weight_decay", weight_decay)

    def init(params: Params, /) -> OptState:
        return DecayState(zero_count(params))

    def update(
        updates: PyTree, state: DecayState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        decay = value_at(weight_decay, state.step)
        (updates,) = map_leaves(_add_share, updates, reads=[params], scalars=[decay])
        return updates, DecayState(state.step + 1)

    return Transform(init, update)


def _add_share(update: Tensor, param: Tensor, decay: float | Tensor) -> Tensor:
    if isinstance(decay, Tensor):
        return torch.addcmul(update, param, decay)
    return torch.add(update, param, alpha=decay)
