"""Losses and metrics of a batch, without a gradient; they add up exactly over batches."""

from __future__ import annotations

from collections.abc import Callable

from funcloop import random
from funcloop._loss import evaluate_loss, require_vector, weighted_mean, weights_of
from funcloop._purity import no_outer_graph
from funcloop._types import Batch, Estimate, LossFn
from funcloop.step._state import TrainState

EvalStep = Callable[[TrainState, Batch], Estimate]


def eval_step(loss_fn: LossFn) -> EvalStep:
    """The pure evaluation `(TrainState, batch) -> Estimate` with neither gradients nor buffers.

    Estimates of several batches are joined by `Estimate.combine`, which weighs them exactly; the
    mean over a data set does not depend on how it was cut into batches.

    Args:
        loss_fn: A LossFn in evaluation mode, e.g. `supervised(model, criterion, train=False)`.

    Returns:
        The evaluation. `grads` and `buffers` of its Estimate are () (empty trees).

    Raises:
        ShapeError: the loss is 0-d.

    >>> import torch
    >>> from funcloop import optim
    >>> evaluate = eval_step(lambda params, buffers, x, key: x)
    >>> state = TrainState.create({}, {}, optim.sgd(0.1), key=random.key(0))
    >>> a, b = evaluate(state, torch.tensor([1.0])), evaluate(state, torch.tensor([3.0, 5.0]))
    >>> a.combine(b).loss
    tensor(3.)
    """

    def evaluate(state: TrainState, batch: Batch) -> Estimate:
        with no_outer_graph():
            key = random.fold_in(state.key, state.step)
            losses, aux = evaluate_loss(loss_fn, state.params, state.buffers, batch, key)
            weight = weights_of(require_vector(losses, "an evaluation step"), aux)
            metrics = {name: weighted_mean(m, weight) for name, m in aux.metrics.items()}
            return Estimate((), weighted_mean(losses, weight), (), metrics, weight.sum())

    return evaluate
