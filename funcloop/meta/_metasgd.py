"""Meta-SGD (Li et al. 2017, arXiv:1707.09835): every element learns its inner learning rate."""

from __future__ import annotations

from typing import Any

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import LossFn, OptState, Params, Transform
from funcloop.meta._maml import maml
from funcloop.meta._statistics import Statistics
from funcloop.meta._tasks import MetaGradFn


def metasgd(
    loss_fn: LossFn,
    steps: int = 1,
    *,
    order: int = 2,
    query_loss_fn: LossFn | None = None,
    statistics: Statistics = "transductive",
    remat: bool = False,
    chunk: int | None = None,
) -> MetaGradFn:
    """MAML with `params - rates * grads` as inner step; the rates are learned, and may be negative.

    The params are `MetaParams(params, rates)`; `MetaParams.with_rates(params, lr)` starts them.

    Args:
        loss_fn: As in `maml`, as is everything else.
        steps: Inner updates.
        order: 2 or 1.
        query_loss_fn: The loss of the query set.
        statistics: What becomes of buffers.
        remat: Recompute the inner steps.
        chunk: Tasks at a time.

    >>> import torch
    >>> from funcloop import random
    >>> from funcloop.meta import MetaParams
    >>> grad_fn = metasgd(lambda params, buffers, target, key: 0.5 * (params - target) ** 2)
    >>> params = MetaParams.with_rates(torch.tensor(2.0), 0.1)
    >>> grad_fn(params, {}, (torch.zeros(1, 1), torch.ones(1, 1)), random.key(0)).grads
    MetaParams(params=tensor(0.7200), hyper=tensor(-1.6000))
    """
    return maml(
        loss_fn,
        _elementwise,
        steps,
        order=order,
        query_loss_fn=query_loss_fn,
        statistics=statistics,
        remat=remat,
        chunk=chunk,
    )


def _elementwise(rates: PyTree) -> Transform:
    def init(params: Params, /) -> OptState:
        return ()

    def update(
        updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        return tree.map(lambda u, rate: -rate * u, updates, rates), state

    return Transform(init, update)
