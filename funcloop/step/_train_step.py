"""One update: estimate the gradient, transform it, apply it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from funcloop import optim, random, tree
from funcloop._errors import StructureError
from funcloop._purity import no_outer_graph
from funcloop._types import Batch, Estimate, GradFn, Metrics, Transform
from funcloop.step._state import TrainState

TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def train_step(grad_fn: GradFn, tx: Transform) -> TrainStep:
    """The pure step `(TrainState, batch) -> (TrainState, metrics)`.

    Step `n` draws its randomness from `fold_in(state.key, n)`, so a run is a function of its state
    and its batches, wherever it is cut.

    Args:
        grad_fn: Any gradient estimator, e.g. `value_and_grad(loss_fn)`.
        tx: Any gradient transformation; it is given `value=`, the loss.

    Returns:
        The step. Its metrics are 0-d: `loss`, `weight`, `grad_norm` (of the estimate, before any
        clipping), `learning_rate` where the optimizer has one, and those of the LossFn.

    Raises:
        StructureError: a metric of the LossFn has one of these names.

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
            estimate = grad_fn(state.params, state.buffers, batch, key)
            updates, opt_state = tx.update(
                estimate.grads, state.opt_state, state.params, value=estimate.loss
            )
            new_state = state._replace(
                step=state.step + 1,
                params=optim.apply_updates(state.params, updates),
                buffers=estimate.buffers,
                opt_state=opt_state,
            )
            return new_state, _metrics(estimate, optim.learning_rate(opt_state))

    return step


def _metrics(estimate: Estimate, learning_rate: Tensor | None) -> Metrics:
    own = {
        "loss": estimate.loss,
        "weight": estimate.weight,
        "grad_norm": tree.norm(estimate.grads),
    }
    if learning_rate is not None:
        own["learning_rate"] = learning_rate
    taken = sorted(own.keys() & estimate.metrics.keys())
    if taken:
        raise StructureError(
            "a step reports loss, weight, grad_norm and learning_rate itself",
            f"the loss function has metrics {taken}",
            "give them other names",
        )
    return {**own, **estimate.metrics}
