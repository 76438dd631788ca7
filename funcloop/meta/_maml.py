"""Model-agnostic meta-learning (Finn et al. 2017, arXiv:1703.03400), and its first-order form."""

from __future__ import annotations

from collections.abc import Callable

import torch

from funcloop import random, tree
from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.meta._adapt import Adapted, Inner, InnerLoop, inner_loop
from funcloop.meta._statistics import Statistics, mean_over_tasks, read_only
from funcloop.meta._tasks import MetaGradFn, TaskLoss, over_tasks, query_loss
from funcloop.stateless._pattern import Pattern


def maml(
    loss_fn: LossFn,
    inner: Inner,
    steps: int,
    *,
    order: int = 2,
    adapted: Pattern = "",
    query_loss_fn: LossFn | None = None,
    statistics: Statistics = "transductive",
    remat: bool = False,
    chunk: int | None = None,
) -> MetaGradFn:
    """The gradient of the query loss after `steps` inner updates on the support set.

    A batch is `(support, query)` or `(support, query, weight)`, every leaf with a leading task
    dimension. Within a task both losses are weighted means over its examples, so that padding of
    weight zero makes tasks of different sizes exact; over tasks the mean is weighted by `weight`,
    one where it is not given. Task `i` draws from `split(key, T)[i]`, whatever the chunks.

    Args:
        loss_fn: The loss of one batch of one task; any LossFn.
        inner: Any optim Transform. Or a function from learned hyperparameters to one; the params
            are then `MetaParams(params, hyper)`, and both are learned:
            `lambda hyper: optim.sgd(hyper["lr"])`.
        steps: Inner updates, each on the whole support set.
        order: 2 differentiates through the inner gradients. 1 takes them as constants, and still
            gives learned hyperparameters their gradient.
        adapted: Patterns of the params that the inner loop changes; by default all.
        query_loss_fn: The loss of the query set where it is another one, e.g. without dropout.
        statistics: What becomes of buffers. Each task starts from the same, and has its own:

            - `transductive`: a task's buffers flow from step to step and to its query, and are
              then dropped; with BatchNorm in training mode each batch is its own statistics.
            - `frozen`: no loss may write them; with BatchNorm in evaluation mode.
            - `per_step`: each inner step and the query has buffers of its own (Antoniou et al.
              2018, arXiv:1810.09502), made by `per_step_buffers`; the new ones are the mean over
              tasks. In evaluation mode each step is then normalised by its own statistics.
        remat: Recompute the inner steps in the backward pass; see `unroll`.
        chunk: Tasks that are differentiated at a time, to save memory; by default all.

    Returns:
        A GradFn, with `adapt` and `loss_fn` as attributes.

    Raises:
        ArgumentError: a number or name is out of range.
        StructureError, ShapeError, UnsupportedError: at the call, where batch, params or buffers
            are not what is described above.

    >>> from funcloop import optim
    >>> def loss_fn(params, buffers, target, key):
    ...     return 0.5 * (params["w"] - target) ** 2
    >>> grad_fn = maml(loss_fn, optim.sgd(0.1), steps=1)
    >>> tasks = torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [3.0]])
    >>> params = {"w": torch.tensor(2.0)}
    >>> grad_fn(params, {}, tasks, random.key(0)).grads  # 0.9 * mean(1.8 - 1, 1.8 - 3)
    {'w': tensor(-0.1800)}
    >>> grad_fn.adapt(params, {}, torch.tensor([0.0]), random.key(0)).params
    {'w': tensor(1.8000)}
    """
    adapt = inner_loop(
        loss_fn,
        inner,
        steps,
        order=order,
        adapted=adapted,
        statistics=statistics,
        remat=remat,
    )
    evaluate = after_adaptation(adapt, query_loss_fn or loss_fn)

    def task(params: Params, buffers: Buffers, support: Batch, query: Batch, key: Key) -> TaskLoss:
        return evaluate(adapt(params, buffers, support, key), query, key)

    merge = mean_over_tasks if statistics == "per_step" else None
    return over_tasks(adapt, task, merge, chunk, shared=statistics == "frozen")


def after_adaptation(
    adapt: InnerLoop, loss_fn: LossFn
) -> Callable[[Adapted, Batch, Key], TaskLoss]:
    """`(adapted, query, key) -> TaskLoss`, with the task's key."""
    if adapt.statistics == "frozen":
        loss_fn = read_only(loss_fn)

    def evaluate(adapted: Adapted, query: Batch, key: Key) -> TaskLoss:
        params, buffers, _ = adapted
        query_key = random.split(key, adapt.steps + 1)[-1]  # the one that adapt left
        if adapt.statistics != "per_step":
            return query_loss(loss_fn, params, buffers, query, query_key)[0]
        last = tree.map(lambda b: b[-1], buffers)
        loss, last = query_loss(loss_fn, params, last, query, query_key)
        places = tree.map(lambda b, q: torch.cat([b[:-1], q.unsqueeze(0)]), buffers, last)
        return loss._replace(buffers=tree.map(torch.Tensor.detach, places))

    return evaluate


def fomaml(
    loss_fn: LossFn,
    inner: Inner,
    steps: int,
    *,
    adapted: Pattern = "",
    query_loss_fn: LossFn | None = None,
    statistics: Statistics = "transductive",
    chunk: int | None = None,
) -> MetaGradFn:
    """First-order MAML: `maml` with the inner gradients taken as constants.

    Args:
        loss_fn: As in `maml`, as is everything else.
        inner: The inner optimizer.
        steps: Inner updates.
        adapted: Patterns of the params that the inner loop changes.
        query_loss_fn: The loss of the query set.
        statistics: What becomes of buffers.
        chunk: Tasks at a time.

    >>> from funcloop import optim
    >>> grad_fn = fomaml(lambda p, b, target, key: (p - target) ** 2 / 2, optim.sgd(0.1), steps=1)
    >>> grad_fn(torch.tensor(2.0), {}, (torch.zeros(1, 1), torch.ones(1, 1)), random.key(0)).grads
    tensor(0.8000)
    """
    return maml(
        loss_fn,
        inner,
        steps,
        order=1,
        adapted=adapted,
        query_loss_fn=query_loss_fn,
        statistics=statistics,
        chunk=chunk,
    )
