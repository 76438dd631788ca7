"""Updates of a given size or mean: normalized, and centralized (Yong et al. 2020, 2004.01461)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._hyper import check_range
from funcloop.optim._leaves import map_leaves
from funcloop.optim._stateless import stateless


def normalize(scale: float = 1.0, eps: float = 0.0) -> Transform:
    """Scale all updates to the global norm `scale`; updates of zero stay zero.

    Args:
        scale: The norm afterwards.
        eps: Added to the norm before.

    >>> import torch
    >>> normalize().update({"w": torch.tensor([3.0, 4.0])}, (), {})[0]
    {'w': tensor([0.6000, 0.8000])}
    """
    check_range("scale", scale, open_low=True)
    check_range("eps", eps)

    def init(params: Params, /) -> OptState:
        return ()

    def update(
        updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        norm = tree.norm(updates).to(torch.float64)
        factor = torch.where(norm > 0, scale / (torch.where(norm > 0, norm, 1.0) + eps), 0.0)
        (updates,) = map_leaves(lambda u, f: u * f, updates, scalars=[factor])
        return updates, state

    return Transform(init, update)


def centralize() -> Transform:
    """Subtract from each leaf of two or more dimensions its mean over all dimensions but the first.

    >>> import torch
    >>> centralize().update({"w": torch.tensor([[1.0, 3.0]]), "b": torch.ones(1)}, (), {})[0]
    {'w': tensor([[-1.,  1.]]), 'b': tensor([1.])}
    """

    def formula(u: Tensor) -> Tensor:
        return u - u.mean(list(range(1, u.ndim)), keepdim=True) if u.ndim > 1 else u

    return stateless(formula)
