"""The exact value of losses and metrics over a whole data set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from funcloop._errors import ArgumentError
from funcloop._types import Batch, Estimate
from funcloop.loop.metrics import Scores
from funcloop.step import TrainState


def evaluator(
    evaluate: Callable[[TrainState, Batch], Estimate | Scores], data: Iterable[Batch]
) -> Callable[[TrainState], dict[str, float]]:
    """`evaluate=` of `fit`: runs an `eval_step` or a `score_step` over all batches and joins them.

    Args:
        evaluate: What `eval_step` or `metrics.score_step` returned, jitted or not.
        data: A data set that can be iterated again and again, e.g. `batches(None, (x, y), 256)`.

    Returns:
        A function from a TrainState to the numbers by name, as floats: the mean `loss` and metrics
        of an `eval_step`, the metrics of a `score_step`.

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
        # Joined one by one: a thousand classes make a confusion matrix of 8 MB in every batch.
        joined = functools.reduce(_join, (evaluate(state, batch) for batch in data), None)
        if joined is None:
            raise ArgumentError(
                "an evaluation needs data", "no batch came", "give data that can be iterated again"
            )
        return {name: float(value) for name, value in _numbers(joined).items()}

    return run


def _join(joined: Any, more: Any) -> Any:
    return more if joined is None else joined.combine(more)


def _numbers(total: Estimate | Scores) -> Mapping[str, Any]:
    if isinstance(total, Estimate):
        return {"loss": total.loss, **total.metrics}
    return total.compute()
