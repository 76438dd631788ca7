"""The exact mean of losses and metrics over a whole data set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from funcloop._errors import ArgumentError
from funcloop._types import Batch, Estimate
from funcloop.step import TrainState


def evaluator(
    evaluate: Callable[[TrainState, Batch], Estimate], data: Iterable[Batch]
) -> Callable[[TrainState], dict[str, float]]:
    """`evaluate=` of `fit`: runs an `eval_step` over all batches and joins them by weight.

    Args:
        evaluate: What `eval_step` returned, jitted or not.
        data: A data set that can be iterated again and again, e.g. `batches(None, (x, y), 256)`.

    Returns:
        A function from a TrainState to the mean `loss` and metrics, as floats.

    Raises:
        ArgumentError: the data are empty.

    >>> import torch
    >>> from funcloop import optim, random, step
    >>> evaluate = step.eval_step(lambda params, buffers, x, key: x)
    >>> state = step.TrainState.create({}, {}, optim.sgd(0.1), key=random.key(0))
    >>> evaluator(evaluate, [torch.tensor([1.0]), torch.tensor([3.0, 5.0])])(state)
    {'loss': 3.0}
    """

    def run(state: TrainState) -> dict[str, float]:
        estimates = [evaluate(state, batch) for batch in data]
        if not estimates:
            raise ArgumentError(
                "an evaluation needs data", "no batch came", "give data that can be iterated again"
            )
        total = functools.reduce(Estimate.combine, estimates)
        return {"loss": float(total.loss), **{k: float(v) for k, v in total.metrics.items()}}

    return run
