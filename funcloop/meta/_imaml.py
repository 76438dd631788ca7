"""Implicit MAML (Rajeswaran et al. 2019, arXiv:1909.04630): no path through the inner loop."""

from __future__ import annotations

from torch import Tensor

from funcloop import random, tree
from funcloop._loss import evaluate_loss, weighted_mean, weights_of
from funcloop._pytree import PyTree
from funcloop._types import Batch, Buffers, Key, LossFn, Params, Transform
from funcloop.estimators import value_and_grad
from funcloop.meta._adapt import Adapted, inner_loop
from funcloop.meta._cg import cg
from funcloop.meta._root import custom_root
from funcloop.meta._solver import Solver
from funcloop.meta._statistics import read_only
from funcloop.meta._tasks import MetaGradFn, TaskLoss, over_tasks, query_loss


def imaml(
    loss_fn: LossFn,
    inner: Transform,
    steps: int,
    *,
    strength: float | Tensor = 1.0,
    solver: Solver | None = None,
    tol: float | Tensor = 1e-2,
    query_loss_fn: LossFn | None = None,
    chunk: int | None = None,
) -> MetaGradFn:
    """The gradient of the query loss at the minimum of a proximal support loss.

    The minimum over p of `support loss(p) + strength / 2 * |p - params|^2` is sought by `steps`
    inner updates, and differentiated by the implicit function theorem: memory and time of the
    backward pass do not depend on `steps`. Buffers are read and never written.

    Args:
        loss_fn: As in `maml`. Its random numbers are the same at every inner step.
        inner: The optimizer that seeks the minimum.
        steps: Inner updates.
        strength: Of the proximal term; a number or a 0-d tensor.
        solver: For the linear system of the derivative, symmetric, by default `cg()`.
        tol: Largest norm of the inner gradient, relative to `max(1, norm of the params)`, that
            passes as a minimum; beyond it the meta-gradient is NaN, and eagerly a ConvergenceError.
        query_loss_fn: The loss of the query set.
        chunk: Tasks at a time.

    >>> import torch
    >>> from funcloop import optim
    >>> grad_fn = imaml(lambda p, b, target, key: (p - target) ** 2 / 2, optim.sgd(0.5), steps=20)
    >>> tasks = torch.zeros(1, 1), torch.ones(1, 1)
    >>> grad_fn(torch.tensor(3.0), {}, tasks, random.key(0)).grads  # the minimum is 3 / 2
    tensor(0.2500)
    """
    quiet = read_only(loss_fn)

    def proximal(p: Params, buffers: Buffers, batch: Batch, key: Key) -> Tensor:
        (start, support), buffers = batch, buffers
        losses, aux = evaluate_loss(quiet, p, buffers, support, key)
        away = tree.sub(p, start)
        return weighted_mean(losses, weights_of(losses, aux)) + strength / 2 * tree.vdot(away, away)

    def optimality(p: Params, start: Params, buffers: Buffers, support: Batch, key: Key) -> PyTree:
        return value_and_grad(proximal)(p, buffers, (start, support), key).grads

    def solve(start: Params, buffers: Buffers, support: Batch, key: Key) -> Params:
        # One key for every step: the objective whose minimum is sought stays the same.
        loop = inner_loop(lambda p, b, x, _: proximal(p, b, x, key), inner, steps, order=1)
        return loop(start, buffers, (start, support), key).params

    minimum = custom_root(optimality, solve, solver=solver or cg(), tol=tol)

    def adapt(params: Params, buffers: Buffers, support: Batch, key: Key) -> Adapted:
        found = minimum(params, buffers, support, random.split(key)[0])
        return Adapted(found, buffers, {})

    def task(params: Params, buffers: Buffers, support: Batch, query: Batch, key: Key) -> TaskLoss:
        adapted = adapt(params, buffers, support, key)
        evaluate = read_only(query_loss_fn or loss_fn)
        return query_loss(evaluate, adapted.params, buffers, query, random.split(key)[1])[0]

    return over_tasks(adapt, task, None, chunk, shared=True)
