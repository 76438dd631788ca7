"""The inner loop: a few optimizer steps on the support set of one task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from funcloop import optim, random, tree
from funcloop._errors import ArgumentError, StructureError
from funcloop._pytree import PyTree
from funcloop._types import Batch, Buffers, Key, LossFn, Metrics, Params, Transform
from funcloop.estimators import value_and_grad
from funcloop.meta._learned import MetaParams
from funcloop.meta._statistics import Statistics, check_statistics, read_only, slots
from funcloop.meta._unroll import run_steps
from funcloop.stateless._pattern import Pattern, as_patterns, matches

#: The inner optimizer, or a function that makes it from learned hyperparameters.
Inner: TypeAlias = Transform | Callable[[PyTree], Transform]


class Adapted(NamedTuple):
    """What a task has become.

    Attributes:
        params: All params, adapted.
        buffers: The task's own buffers.
        metrics: `loss` and the metrics of the support set before each step, shape (steps,).
    """

    params: Params
    buffers: Buffers
    metrics: Metrics


class Adapt(Protocol):
    """`(params, buffers, support, key) -> Adapted`, for one task."""

    def __call__(
        self, params: Params, buffers: Buffers, support: Batch, key: Key, /
    ) -> Adapted: ...


@dataclass(frozen=True)
class InnerLoop:
    """`(params, buffers, support, key) -> Adapted` by `steps` updates; made by `inner_loop`.

    Attributes:
        loss_fn: The support loss.
        inner: The optimizer.
        steps: How many updates.
        order: 2 differentiates through the gradients, 1 takes them as constants.
        adapted: Patterns of the params that are adapted.
        statistics: What becomes of buffers.
        remat: Whether to recompute the steps in the backward pass.
    """

    loss_fn: LossFn
    inner: Inner
    steps: int
    order: int
    adapted: Pattern
    statistics: Statistics
    remat: bool

    def __call__(self, params: Params, buffers: Buffers, support: Batch, key: Key, /) -> Adapted:
        """Adapt to one task."""
        params, hyper = _separate(params, self.inner)
        head, body = _choose(params, self.adapted)
        keys = random.split(key, self.steps + 1).unbind()
        per_step = self.statistics == "per_step"
        places = slots(buffers, self.steps) if per_step else [None] * (self.steps + 1)
        shared = body, hyper, support
        rows = [(shared, k, place) for k, place in zip(keys, places, strict=True)]
        state = head, self._transform(hyper).init(head), None if per_step else buffers
        (head, _, carried), (metrics, written) = run_steps(
            self._step, state, rows[:-1], rows[-1], self.remat
        )
        if per_step:
            last = places[-1]
            carried = tree.map(lambda w, b: torch.cat([w, b.unsqueeze(0)]), written, last)
        return Adapted(tree.combine(head, body), detach(carried), metrics)

    def _transform(self, hyper: PyTree) -> Transform:
        made = self.inner if _is_transform(self.inner) else self.inner(hyper)  # type: ignore[operator]  # a function of hyper, then
        return optim.with_extra(made)  # type: ignore[arg-type]  # a Transform, then

    def _step(self, state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        head, opt_state, carried = state
        (body, hyper, support), key, place = batch
        # Buffers carry no gradient, as in a module; torch's BatchNorm refuses one in them.
        buffers = detach(carried if place is None else place)
        tx = self._transform(hyper)
        at = detach if self.order == 1 else lambda x: x

        def head_loss(head: Params, buffers: Buffers, batch: Batch, key: Key) -> Any:
            return self.loss_fn(tree.combine(head, at(body)), buffers, batch, key)

        loss_fn = read_only(head_loss) if self.statistics == "frozen" else head_loss
        estimate = value_and_grad(loss_fn)(at(head), buffers, support, key)
        updates, opt_state = tx.update(estimate.grads, opt_state, head, value=estimate.loss)
        metrics = {"loss": estimate.loss, **estimate.metrics}
        carried, written = (estimate.buffers, None) if place is None else (None, estimate.buffers)
        return (optim.apply_updates(head, updates), opt_state, carried), (metrics, written)


def inner_loop(
    loss_fn: LossFn,
    inner: Inner,
    steps: int,
    *,
    order: int = 2,
    adapted: Pattern = "",
    statistics: Statistics = "transductive",
    remat: bool = False,
) -> InnerLoop:
    """The inner loop, with its arguments checked."""
    if steps < 0:
        raise ArgumentError("a task is adapted by steps >= 0", f"steps={steps}", "give a count")
    if order not in (1, 2):
        raise ArgumentError(
            "a meta-gradient is of first or second order", f"order={order}", "give 1 or 2"
        )
    check_statistics(statistics)
    return InnerLoop(loss_fn, inner, steps, order, adapted, statistics, remat)


def _is_transform(inner: Any) -> bool:
    return hasattr(inner, "init") and hasattr(inner, "update")


def _separate(params: Params, inner: Inner) -> tuple[Params, PyTree]:
    """The params and the learned hyperparameters, which a fixed optimizer has none of."""
    learned = not _is_transform(inner)
    if learned != isinstance(params, MetaParams):
        raise StructureError(
            "an inner optimizer is a Transform, or it is made from learned hyperparameters in "
            "MetaParams(params, hyper)",
            f"inner is {'a function of them' if learned else 'a Transform'}, the params are a "
            f"{type(params).__name__}",
            "wrap the params in MetaParams, or give a Transform",
        )
    return (params.params, params.hyper) if learned else (params, None)


def _choose(params: Params, adapted: Pattern) -> tuple[Params, Params]:
    patterns = as_patterns(adapted)

    def chosen(path: str, _: Any) -> bool:
        return any(matches(path.replace("/", "."), pattern) for pattern in patterns)

    head, body = tree.partition(params, chosen)
    if tree.leaves(params) and not tree.leaves(head):
        raise StructureError(
            "a pattern of adapted params matches some",
            f"{adapted!r} matches none of {tree.paths(params)}",
            "use names of params or of modules, with * for any part",
        )
    return head, body


def detach(value: PyTree) -> PyTree:
    return tree.map(Tensor.detach, value)
