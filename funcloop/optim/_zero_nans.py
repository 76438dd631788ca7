"""NaN entries of updates set to zero, and counted."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._hyper import zero_count


class ZeroNansState(NamedTuple):
    """`found`: entries that were NaN so far, int64, 0-d."""

    found: Tensor


def zero_nans() -> Transform:
    """Replace every NaN by zero, and count them in the state; infinities pass.

    >>> import torch
    >>> tx, params = zero_nans(), {"w": torch.zeros(2)}
    >>> tx.update({"w": torch.tensor([float("nan"), 1.0])}, tx.init(params), params)
    ({'w': tensor([0., 1.])}, ZeroNansState(found=tensor(1)))
    """

    def init(params: Params, /) -> OptState:
        return ZeroNansState(zero_count(params))

    def update(
        updates: PyTree, state: ZeroNansState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        found = state.found
        for leaf in tree.leaves(updates):
            found = found + leaf.isnan().sum().to(found.device)
        kept = tree.map(lambda u: torch.where(u.isnan(), 0.0, u), updates)
        return kept, ZeroNansState(found)

    return Transform(init, update)
