"""Bilevel optimisation: hyperparameters by the implicit gradient of what is learned with them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from funcloop import random, tree
from funcloop._loss import evaluate_loss
from funcloop._pytree import PyTree
from funcloop._types import Aux, Batch, Buffers, GradFn, Key, LossFn, Params
from funcloop.estimators import value_and_grad
from funcloop.meta._cg import cg
from funcloop.meta._root import custom_root
from funcloop.meta._solver import Solver


def bilevel(
    inner_loss: Callable[[Params, PyTree, Batch, Key], Tensor],
    outer_loss: LossFn,
    solve: Callable[[Params, PyTree, Batch, Key], Params],
    *,
    solver: Solver | None = None,
    tol: float | Tensor = 1e-3,
) -> GradFn:
    """The gradient of `outer_loss(w*(h))` with `w*(h) = argmin_w inner_loss(w, h)`.

    The GradFn's params are the hyperparameters `h`; its buffers are the inner params `w`, from
    which `solve` starts and which it leaves at the minimum, so that `train_step` keeps them warm.
    A batch is `(inner batch, outer batch)`.

    Args:
        inner_loss: `(w, h, inner batch, key) -> 0-d`.
        outer_loss: A LossFn of `w`: `(w, h, outer batch, key) -> losses (B,)`, or with an Aux.
        solve: `(w, h, inner batch, key) -> w` at the minimum, by any means.
        solver: For the linear system, symmetric at a minimum; by default `cg()`.
        tol: Largest norm of the inner gradient, relative to `max(1, norm of w)`, that passes as a
            minimum; beyond it the gradient is NaN, and eagerly a ConvergenceError.

    >>> import torch
    >>> from funcloop import random
    >>> def inner_loss(w, h, batch, key):
    ...     return ((w - batch) ** 2).sum() / 2 + h * (w**2).sum() / 2
    >>> grad_fn = bilevel(
    ...     inner_loss,
    ...     lambda w, h, batch, key: (w - batch) ** 2,
    ...     lambda w, h, batch, key: batch / (1 + h),
    ... )
    >>> batch = torch.tensor([2.0]), torch.tensor([0.5])
    >>> estimate = grad_fn(torch.tensor(1.0), torch.tensor([0.0]), batch, random.key(0))
    >>> estimate.grads, estimate.buffers  # 2 (w - 0.5) dw/dh = -2 * 0.5 * 2 / (1 + 1)^2
    (tensor(-0.5000), tensor([1.]))
    """

    def optimality(w: Params, h: PyTree, start: Params, batch: Batch, key: Key) -> PyTree:
        return value_and_grad(lambda w, h, batch, key: inner_loss(w, h, batch, key))(
            w, h, batch, key
        ).grads

    def from_start(h: PyTree, start: Params, batch: Batch, key: Key) -> Params:
        return solve(start, h, batch, key)

    minimum = custom_root(optimality, from_start, solver=solver or cg(), tol=tol)

    def loss_fn(h: Params, buffers: Buffers, batch: Batch, key: Key) -> tuple[Tensor, Aux]:
        inner_batch, outer_batch = batch
        inner_key, outer_key = random.split(key).unbind()
        w = minimum(h, buffers, inner_batch, inner_key)
        losses, aux = evaluate_loss(outer_loss, w, h, outer_batch, outer_key)
        return losses, aux._replace(buffers=tree.map(Tensor.detach, w))

    return value_and_grad(loss_fn)
