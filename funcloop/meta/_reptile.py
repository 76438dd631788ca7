"""Reptile (Nichol et al. 2018, arXiv:1803.02999): the way to the adapted params as a gradient."""

from __future__ import annotations

from funcloop import tree
from funcloop._types import Batch, Buffers, Key, LossFn, Params, Transform
from funcloop.meta._adapt import detach, inner_loop
from funcloop.meta._maml import after_adaptation
from funcloop.meta._statistics import Statistics, mean_over_tasks
from funcloop.meta._tasks import MetaGradFn, TaskLoss, over_tasks


def reptile(
    loss_fn: LossFn,
    inner: Transform,
    steps: int,
    *,
    query_loss_fn: LossFn | None = None,
    statistics: Statistics = "transductive",
    chunk: int | None = None,
) -> MetaGradFn:
    """`params - adapted params`, the weighted mean over tasks; nothing is differentiated twice.

    With plain SGD of rate 1 outside, `params += lr * (adapted - params)`. Loss and metrics are
    those of the query set after adaptation, which the gradient does not use.

    Args:
        loss_fn: As in `maml`, as is everything else.
        inner: The inner optimizer, a Transform.
        steps: Inner updates.
        query_loss_fn: The loss of the query set.
        statistics: What becomes of buffers.
        chunk: Tasks at a time.

    >>> import torch
    >>> from funcloop import optim, random
    >>> grad_fn = reptile(lambda p, b, target, key: (p - target) ** 2 / 2, optim.sgd(0.1), steps=2)
    >>> tasks = torch.zeros(1, 1), torch.ones(1, 1)
    >>> grad_fn(torch.tensor(2.0), {}, tasks, random.key(0)).grads  # 2 - 2 * 0.9 ** 2
    tensor(0.3800)
    """
    adapt = inner_loop(loss_fn, inner, steps, order=1, statistics=statistics)
    evaluate = after_adaptation(adapt, query_loss_fn or loss_fn)

    def task(params: Params, buffers: Buffers, support: Batch, query: Batch, key: Key) -> TaskLoss:
        start = detach(params)
        adapted = adapt(start, buffers, support, key)
        loss = evaluate(adapted, query, key)
        way = tree.sub(start, detach(adapted.params))
        # A term of value zero whose gradient is the way.
        return loss._replace(loss=loss.loss.detach() + tree.vdot(way, tree.sub(params, start)))

    merge = mean_over_tasks if statistics == "per_step" else None
    return over_tasks(adapt, task, merge, chunk, shared=statistics == "frozen")
