"""One update: estimate the gradient, transform it, apply it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from funcloop import optim, random, tree
from funcloop._errors import StructureError
from funcloop._purity import no_outer_graph
from funcloop._types import Batch, Estimate, GradFn, Key, Metrics, Transform
from funcloop.precision import Scaled
from funcloop.step._state import TrainState

TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def train_step(grad_fn: GradFn, tx: Transform) -> TrainStep:
    """The pure step `(TrainState, batch) -> (TrainState, metrics)`.

    Step `n` draws its randomness from `fold_in(state.key, n)`, so a run is a function of its state
    and its batches, wherever it is cut.

    Where the state has a loss scale, a step whose gradients are not all finite leaves params,
    optimizer state (schedules included) and buffers as they are, and only counts: `state.step` is
    the number of batches seen, and decides the next key.

    Args:
        grad_fn: Any gradient estimator, e.g. `value_and_grad(loss_fn)`.
        tx: Any gradient transformation; it is given `value=`, the loss.

    Returns:
        The step. Its metrics are 0-d: `loss`, `weight`, `grad_norm` (of the estimate, before any
        clipping), `learning_rate` where the optimizer has one, `loss_scale` and `skipped` where the
        state has a loss scale, and those of the LossFn.

    Raises:
        StructureError: a metric of the LossFn has one of these names, or the state has a loss scale
            and `grad_fn` does not use it.

    >>> import torch
    >>> from funcloop import estimators
    >>> grad_fn = estimators.value_and_grad(lambda params, buffers, x, key: params["w"] * x)
    >>> tx = optim.sgd(0.5)
    >>> state = TrainState.create({"w": torch.tensor(1.0)}, {}, tx, key=random.key(0))
    >>> state, metrics = train_step(grad_fn, tx)(state, torch.tensor([1.0, 3.0]))
    >>> state.step, state.params, metrics["loss"]
    (tensor(1), {'w': tensor(0.)}, tensor(2.))
    """
    tx = optim.with_extra(tx)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        with no_outer_graph():
            key = random.fold_in(state.key, state.step)
            if state.loss_scale:
                return _scaled_step(grad_fn, tx, state, batch, key)
            estimate = grad_fn(state.params, state.buffers, batch, key)
            new_state = _update(tx, state, estimate)
            return new_state, _metrics(estimate, new_state, {})

    return step


def _update(tx: Transform, state: TrainState, estimate: Estimate) -> TrainState:
    updates, opt_state = tx.update(
        estimate.grads, state.opt_state, state.params, value=estimate.loss
    )
    return state._replace(
        step=state.step + 1,
        params=optim.apply_updates(state.params, updates),
        buffers=estimate.buffers,
        opt_state=opt_state,
    )


def _scaled_step(
    grad_fn: GradFn, tx: Transform, state: TrainState, batch: Batch, key: Key
) -> tuple[TrainState, Metrics]:
    """One update by a scaled loss; none, and a smaller scale, where a gradient is not finite."""
    loss_scale = state.loss_scale
    estimate = grad_fn(state.params, Scaled(state.buffers, loss_scale.scale), batch, key)
    if not isinstance(estimate.buffers, Scaled):
        raise StructureError(
            "a state with a loss scale is for a gradient that uses it",
            f"the gradient function returns buffers of type {type(estimate.buffers).__name__}",
            "make it by precision.loss_scaled, or leave loss_scale out of the state",
        )
    estimate = estimate._replace(buffers=estimate.buffers.buffers)
    finite = tree.all_finite(estimate.grads)
    # Both outcomes are computed and one is chosen; zeros, lest a NaN reach a meta-gradient.
    sound = estimate._replace(grads=tree.map(lambda g: torch.where(finite, g, 0), estimate.grads))
    updated = _update(tx, state, sound)
    new_state = tree.where(finite, updated, state)._replace(
        step=updated.step, loss_scale=loss_scale.adjust(finite)
    )
    own = {"loss_scale": loss_scale.scale, "skipped": (~finite).float()}
    return new_state, _metrics(estimate, new_state, own)


def _metrics(estimate: Estimate, new_state: TrainState, more: Metrics) -> Metrics:
    own = {
        "loss": estimate.loss,
        "weight": estimate.weight,
        "grad_norm": tree.norm(estimate.grads),
        **more,
    }
    learning_rate = optim.learning_rate(new_state.opt_state)
    if learning_rate is not None:
        own["learning_rate"] = learning_rate
    taken = sorted(own.keys() & estimate.metrics.keys())
    if taken:
        raise StructureError(
            f"a step reports {', '.join(own)} itself",
            f"the loss function has metrics {taken}",
            "give them other names",
        )
    return {**own, **estimate.metrics}
