"""The first check of a new model: can it learn one batch by heart?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from funcloop._errors import ArgumentError, ConvergenceError
from funcloop._types import Batch, Metrics
from funcloop.loop._probe import copied, randomness_put_back

State = TypeVar("State")


def overfit_batch(
    state: State,
    step: Callable[[State, Any], tuple[State, Metrics]],
    batch: Batch,
    *,
    steps: int = 500,
    target: float = 0.01,
) -> list[float]:
    """Train a copy of the state on one batch until its loss is at most `target`.

    A model that cannot do that has a mistake in it: labels that do not belong to their inputs, a
    loss that the parameters do not reach, a learning rate far off. Switch dropout, augmentation and
    weight decay off for this, and give only as many examples as the model can tell apart.

    Args:
        state: Where training starts; it stays as it is, also if the step donates its argument.
        step: `(state, batch) -> (state, metrics)` with a metric `loss`.
        batch: One batch.
        steps: How many updates at most.
        target: The loss to reach, in the unit of the loss.

    Returns:
        The loss of every step, the last one at most `target`.

    Raises:
        ArgumentError: `steps` is less than one.
        ConvergenceError: the loss does not get there; the error says what it did instead.

    >>> import torch
    >>> from funcloop import estimators, optim, random, step
    >>> grad_fn = estimators.value_and_grad(lambda params, buffers, x, key: (params["w"] - x) ** 2)
    >>> tx = optim.sgd(0.25)
    >>> state = step.TrainState.create({"w": torch.tensor(2.0)}, {}, tx, key=random.key(0))
    >>> overfit_batch(state, step.train_step(grad_fn, tx), torch.zeros(3), target=0.1)
    [4.0, 1.0, 0.25, 0.0625]
    """
    if steps < 1:
        raise ArgumentError("a check makes at least one step", f"steps={steps}", "give some")
    state, losses = copied(state), []
    with randomness_put_back(None):
        while len(losses) < steps:
            state, metrics = step(state, batch)
            losses.append(float(metrics["loss"]))
            if losses[-1] <= target:
                return losses
            if not math.isfinite(losses[-1]):
                break
    raise _failure(losses, target)


def _failure(losses: list[float], target: float) -> ConvergenceError:
    first, last, count = losses[0], losses[-1], len(losses)
    course = f"it went from {first:.4g} to {last:.4g} in {count} steps"
    if not math.isfinite(last):
        remedy = "lower the learning rate, or look for a division by zero or a logarithm of it"
    elif last == first:
        remedy = "check that the loss depends on the params, and that the learning rate is not zero"
    elif last > first:
        remedy = "lower the learning rate, or check the sign of the loss"
    else:
        remedy = "give more steps or a higher rate; if it stays, check that labels fit their inputs"
    return ConvergenceError(f"one batch can be learned to a loss of {target:g}", course, remedy)
