"""From one task to many: the meta-loss is a LossFn whose examples are tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from funcloop import random, tree
from funcloop._errors import ArgumentError, StructureError
from funcloop._loss import evaluate_loss, weighted_mean, weights_of
from funcloop._purity import no_outer_graph
from funcloop._pytree import PyTree
from funcloop._sum import combine_all
from funcloop._types import (
    Aux,
    Batch,
    Buffers,
    Estimate,
    GradFn,
    Key,
    LossFn,
    Metrics,
    Params,
)
from funcloop.estimators import value_and_grad

#: `(params, buffers, support, query, key) -> TaskLoss`, for one task.
TaskFn: TypeAlias = Callable[[Params, Buffers, Batch, Batch, Key], "TaskLoss"]


class TaskLoss(NamedTuple):
    """What one task contributes.

    Attributes:
        loss: Weighted mean over the query examples, 0-d.
        metrics: The same of each metric.
        weight: Total weight of the query examples, 0-d.
        buffers: The task's buffers afterwards, or None where they are dropped.
    """

    loss: Tensor
    metrics: Metrics
    weight: Tensor
    buffers: Buffers


class Tasks(NamedTuple):
    """A batch of tasks; every leaf has the leading task dimension (T, ...)."""

    support: Batch
    query: Batch
    weight: Tensor | None
    keys: Tensor


@dataclass(frozen=True)
class MetaGradFn:
    """A GradFn over a batch of tasks, with the parts that it is made of.

    A batch is `(support, query)` or `(support, query, weight)`, every leaf with a leading task
    dimension; `weight` has shape (T,), and a task of weight zero is padding.

    Attributes:
        adapt: `(params, buffers, support, key) -> Adapted`: what happens to one task, for use at
            test time.
        loss_fn: The LossFn over tasks, one loss for each; `eval_step` takes it.
        grad_fn: The gradient from a batch with explicit keys.
        chunk: How many tasks are differentiated at a time; None is all.
    """

    adapt: Callable[..., Any]
    loss_fn: LossFn
    grad_fn: GradFn
    chunk: int | None

    def __call__(self, params: Params, buffers: Buffers, batch: Batch, key: Key, /) -> Estimate:
        """The meta-gradient: the weighted mean over tasks."""
        tasks = as_tasks(batch, key)
        size = len(tasks.keys) if self.chunk is None else self.chunk
        with no_outer_graph():
            parts = [_slice(tasks, i, size) for i in _starts(tasks, size)]
            return combine_all(self.grad_fn(params, buffers, part, key) for part in parts)


def _slice(tasks: Tasks, start: int, size: int) -> Tasks:
    return tree.map(lambda x: x[start : start + size], tasks)


def _starts(tasks: Tasks, size: int) -> range:
    return range(0, max(1, len(tasks.keys)), max(1, size))


def as_tasks(batch: Batch, key: Key) -> Tasks:
    """The batch with one key for each task."""
    if isinstance(batch, Tasks):
        return batch
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise StructureError(
            "a batch of tasks is (support, query) or (support, query, weight)",
            f"a {type(batch).__name__}"
            + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""),
            "put both sets in a tuple, each leaf with a leading task dimension",
        )
    support, query, weight = batch if len(batch) == 3 else (*batch, None)
    counts = {path: len(x) for path, x in tree.items((support, query, weight)) if x.ndim}
    if len(set(counts.values())) != 1 or len(counts) < len(tree.leaves((support, query, weight))):
        raise StructureError(
            "every leaf of a batch of tasks has the same leading task dimension",
            f"leading dimensions {counts}",
            "stack the tasks, and pad shots with examples of weight zero",
        )
    keys = random.split(key, next(iter(counts.values())))
    if weight is None:
        return Tasks(support, query, None, keys)
    support, query = _without_padding((support, query), weight)
    return Tasks(support, query, weight, keys)


def _without_padding(sets: PyTree, weight: Tensor) -> PyTree:
    """The sets with those of tasks of weight zero replaced by a real task's.

    Zero times the gradient of a padded task would be NaN where that gradient is not finite.
    """
    real = (weight != 0).to(torch.int8).argmax().reshape(1)

    def fill(x: Tensor) -> Tensor:
        padding = (weight == 0).reshape(-1, *[1] * (x.ndim - 1))
        return torch.where(padding, x.index_select(0, real), x)

    return tree.map(fill, sets)


def over_tasks(
    adapt: Callable[..., Any],
    task_fn: TaskFn,
    merge: Callable[[Buffers, Tensor, Buffers], Buffers] | None,
    chunk: int | None,
    *,
    shared: bool,
) -> MetaGradFn:
    """The MetaGradFn of what is done with one task.

    Args:
        adapt: What the MetaGradFn offers for test time.
        task_fn: One task.
        merge: New buffers from those of all tasks, or None where they stay what they were.
        chunk: Tasks at a time.
        shared: Whether all tasks see the same buffers, because none writes them.

    Raises:
        ArgumentError: `chunk` is not positive.
    """
    if chunk is not None and chunk < 1:
        raise ArgumentError("a chunk holds at least one task", f"chunk={chunk}", "give a count")

    def loss_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> tuple[Tensor, Aux]:
        tasks = as_tasks(batch, key)

        # Every task has buffers of its own; only those that nobody writes can be shared.
        count = len(tasks.keys)
        own = None if shared else tree.map(lambda b: b.expand(count, *b.shape), buffers)

        def one(own: Buffers, support: Batch, query: Batch, key: Key) -> TaskLoss:
            return task_fn(params, buffers if shared else own, support, query, key)

        each = over_leading(one, own, tasks.support, tasks.query, tasks.keys, chunk=chunk)
        weight = torch.ones_like(each.weight) if tasks.weight is None else tasks.weight
        # A task without query examples has no loss to count.
        weight = torch.where(each.weight == 0, 0, weight.to(each.weight.dtype))
        after = buffers if merge is None else merge(each.buffers, weight.detach(), buffers)
        return each.loss, Aux(after, each.metrics, weight)

    return MetaGradFn(adapt, loss_fn, value_and_grad(loss_fn), chunk)


def over_leading(f: Callable[..., PyTree], *args: PyTree, chunk: int | None = None) -> PyTree:
    """vmap of `f` over the leading dimension, for funcloop's trees: None holds no leaf."""
    leaves, structure = tree.flatten(args)
    made: list[Any] = []

    def flat(leaves: list[Tensor]) -> list[Tensor]:
        outputs, shape = tree.flatten(f(*tree.unflatten(structure, leaves)))
        made[:] = [shape]
        return outputs

    outputs = torch.func.vmap(flat, chunk_size=chunk)(leaves)
    return tree.unflatten(made[0], outputs)


def query_loss(
    loss_fn: LossFn, params: Params, buffers: Buffers, query: Batch, key: Key
) -> tuple[TaskLoss, Buffers]:
    """The weighted mean loss of the query set, and the buffers after it."""
    losses, aux = evaluate_loss(loss_fn, params, buffers, query, key)
    weight = weights_of(losses, aux)
    metrics = {name: weighted_mean(m, weight) for name, m in aux.metrics.items()}
    return TaskLoss(weighted_mean(losses, weight), metrics, weight.sum(), None), aux.buffers
