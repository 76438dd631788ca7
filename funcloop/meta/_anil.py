"""Almost no inner loop (Raghu et al. 2019, arXiv:1909.09157): only the head is adapted."""

from __future__ import annotations

from funcloop._types import LossFn
from funcloop.meta._adapt import Inner
from funcloop.meta._maml import maml
from funcloop.meta._statistics import Statistics
from funcloop.meta._tasks import MetaGradFn
from funcloop.stateless._pattern import Pattern


def anil(
    loss_fn: LossFn,
    inner: Inner,
    steps: int,
    *,
    head: Pattern,
    order: int = 2,
    query_loss_fn: LossFn | None = None,
    statistics: Statistics = "transductive",
    remat: bool = False,
    chunk: int | None = None,
) -> MetaGradFn:
    """MAML whose inner loop changes the head only; the body is learned by the outer loop.

    Args:
        loss_fn: As in `maml`, as is everything else.
        inner: The inner optimizer; it sees the head's params.
        steps: Inner updates.
        head: Pattern, or patterns, of the head's params: names of modules or of params.
        order: 2 or 1.
        query_loss_fn: The loss of the query set.
        statistics: What becomes of buffers.
        remat: Recompute the inner steps.
        chunk: Tasks at a time.

    Raises:
        StructureError: at the call, where the pattern matches nothing.

    >>> import torch
    >>> from funcloop import optim, random
    >>> def loss_fn(p, buffers, target, key):
    ...     return (p["body"] * p["head"] - target) ** 2
    >>> grad_fn = anil(loss_fn, optim.sgd(0.1), steps=3, head="head")
    >>> params = {"body": torch.tensor(2.0), "head": torch.tensor(1.0)}
    >>> grad_fn.adapt(params, {}, torch.tensor([0.0]), random.key(0)).params
    {'body': tensor(2.), 'head': tensor(0.0080)}
    """
    return maml(
        loss_fn,
        inner,
        steps,
        order=order,
        adapted=head,
        query_loss_fn=query_loss_fn,
        statistics=statistics,
        remat=remat,
        chunk=chunk,
    )
