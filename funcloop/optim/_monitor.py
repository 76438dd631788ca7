"""Norms of gradients, updates and params, recorded in the state."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._extra import with_extra
from funcloop.optim._hyper import zero_count
from funcloop.optim._leaves import map_leaves


class MonitorState(NamedTuple):
    """State of `monitor`: norms at the last update, 0-d float64, zero before the first.

    Attributes:
        grad_norm: Global norm of what came in.
        update_norm: Global norm of what went out.
        param_norm: Global norm of the params before the update.
        ratios: Norm of each leaf's update over the norm of its param (zero where the param is
            zero), float64, with the structure of the params.
        inner: State of the inner transform.
    """

    grad_norm: Tensor
    update_norm: Tensor
    param_norm: Tensor
    ratios: PyTree
    inner: OptState


def monitor(inner: Transform) -> Transform:
    """`inner`, with global norms and update-to-param ratios recorded in the state.

    A healthy run has ratios of about 1e-3.

    Args:
        inner: Any transform.

    >>> import torch
    >>> from funcloop.optim import sgd
    >>> tx, params = monitor(sgd(0.1)), {"w": torch.tensor([3.0, 4.0])}
    >>> _, state = tx.update({"w": torch.tensor([6.0, 8.0])}, tx.init(params), params)
    >>> [round(x.item(), 6) for x in state[:3]], round(state.ratios["w"].item(), 6)
    ([10.0, 1.0, 5.0], 0.2)
    """
    tx = with_extra(inner)

    def init(params: Params, /) -> OptState:
        zero = torch.zeros_like(zero_count(params), dtype=torch.float64)
        ratios = tree.map(lambda p: torch.zeros((), dtype=torch.float64, device=p.device), params)
        return MonitorState(zero, zero.clone(), zero.clone(), ratios, tx.init(params))

    def update(
        updates: PyTree, state: MonitorState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        grad_norm = _norm(updates)
        updates, new_inner = tx.update(updates, state.inner, params, **extra)
        updates, ratios = map_leaves(
            lambda u, _, p: (u, _ratio(u, p)), updates, factors=[state.ratios], reads=[params]
        )
        new_state = MonitorState(grad_norm, _norm(updates), _norm(params), ratios, new_inner)
        return updates, new_state

    return Transform(init, update)


def _norm(of: PyTree) -> Tensor:
    return tree.norm(of).to(torch.float64)


def _ratio(update: Tensor, param: Tensor) -> Tensor:
    size, base = torch.linalg.vector_norm(update), torch.linalg.vector_norm(param)
    return torch.where(base > 0, size / torch.where(base > 0, base, 1.0), 0.0)
