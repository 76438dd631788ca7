"""Weight decay: a share of each param added to its update."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._hyper import Hyper, check_range, is_zero, value_at, zero_count
from funcloop.optim._labels import Mask
from funcloop.optim._leaves import map_leaves
from funcloop.optim._partition import masked


class DecayState(NamedTuple):
    """`step`: updates so far, int64, 0-d."""

    step: Tensor


def add_decayed_weights(weight_decay: Hyper, mask: Mask | None = None) -> Transform:
    """Add `weight_decay * param` to every update.

    In front of an optimizer's scaling this is L2 regularisation (torch.optim.Adam); between the
    scaling and the learning rate it is decoupled decay (torch.optim.AdamW).

    Args:
        weight_decay: A float, a 0-d tensor, or a schedule.
        mask: Which leaves decay; see `masked`. None is all.

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
        share = value_at(weight_decay, state.step)
        (updates,) = map_leaves(_add_share, updates, reads=[params], scalars=[share])
        return updates, DecayState(state.step + 1)

    decay = Transform(init, update)
    return decay if mask is None else masked(decay, mask)


def _add_share(update: Tensor, param: Tensor, share: float | Tensor) -> Tensor:
    if isinstance(share, Tensor):
        return update + param * share
    return torch.add(update, param, alpha=share)


def decayed(
    scaling: Transform, weight_decay: Hyper, decoupled: bool = False, mask: Mask | None = None
) -> Transform:
    """`scaling` with weight decay before it (L2) or after it (decoupled); none for a plain 0."""
    if is_zero(weight_decay):
        return scaling
    decay = add_decayed_weights(weight_decay, mask)
    return chain(scaling, decay) if decoupled else chain(decay, scaling)
