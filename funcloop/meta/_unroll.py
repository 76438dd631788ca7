"""Many steps as one differentiable function, with memory near that of one step where asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from funcloop import tree
from funcloop._errors import ArgumentError
from funcloop._pytree import PyTree
from funcloop._remat import remat as rematerialise

#: `(state, batch) -> (state, metrics)`, any pytrees of tensors.
Step: TypeAlias = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


def unroll(step: Step, n: int, *, remat: bool = False) -> Step:
    """`n` steps on the same batch as one step; it can be differentiated in state and batch.

    Args:
        step: Any pure `(state, batch) -> (state, metrics)`.
        n: How many steps, at least zero.
        remat: Keep about `2 * sqrt(n)` states for the backward pass and nothing of the steps
            themselves, which are computed up to three times. The step may then capture no tensor
            that is being differentiated: it has to be a part of state or batch.

    Returns:
        `(state, batch) -> (state, metrics)`, each metric with a leading dimension of `n`.

    Raises:
        ArgumentError: `n` is negative.
        UnsupportedError: at the call with `remat`, where the step captures a tensor that is being
            differentiated.

    >>> import torch
    >>> def step(x, rate):
    ...     return x - rate * torch.func.grad(lambda x: x**2)(x), {"x": x}
    >>> run = unroll(step, 5, remat=True)
    >>> x, metrics = run(torch.tensor(1.0), torch.tensor(0.25))
    >>> x, metrics["x"].shape
    (tensor(0.0312), torch.Size([5]))
    >>> torch.func.grad(lambda x: run(x, torch.tensor(0.25))[0])(torch.tensor(1.0))
    tensor(0.0312)
    """
    if n < 0:
        raise ArgumentError("a step is unrolled n >= 0 times", f"n={n}", "give a count")

    def run(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        return run_steps(step, state, [batch] * n, batch, remat)

    return run


def scan(step: Step, *, remat: bool = False) -> Step:
    """One step for each entry of the batch's leading dimension, as one differentiable function.

    Args:
        step: Any pure `(state, batch) -> (state, metrics)`.
        remat: As in `unroll`.

    Returns:
        `(state, batches) -> (state, metrics)`; leaves of `batches` and of the metrics have a
        leading dimension, one entry for each step.

    Raises:
        StructureError: at the call, where the batches have no leaf to count.

    >>> import torch
    >>> total = scan(lambda state, x: (state + x, {"sum": state + x}))
    >>> total(torch.tensor(0.0), torch.tensor([1.0, 2.0, 3.0]))
    (tensor(6.), {'sum': tensor([1., 3., 6.])})
    """

    def run(state: PyTree, batches: PyTree) -> tuple[PyTree, PyTree]:
        rows = tree.unstack(batches)
        like = tree.map(lambda x: x.new_zeros(x.shape[1:]), batches)
        return run_steps(step, state, rows, rows[0] if rows else like, remat)

    return run


def run_steps(
    step: Step, state: PyTree, batches: Sequence[PyTree], like: PyTree, remat: bool
) -> tuple[PyTree, PyTree]:
    """One step for each batch; `like` looks like one of them, for the shapes of no metrics."""
    if not batches:
        _, metrics = step(state, like)  # for their shapes
        return state, tree.map(lambda m: m.new_zeros((0, *m.shape)), metrics)
    chain = _Chain(step)
    if remat:
        chain = _in_segments(chain)
    state, metrics = chain(state, batches)
    return state, tree.stack(metrics)


class _Chain:
    """Steps one after the other: `(state, batches) -> (state, list of metrics)`."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def __call__(self, state: PyTree, batches: Sequence[PyTree]) -> tuple[PyTree, list[PyTree]]:
        metrics = []
        for batch in batches:
            state, values = self.step(state, batch)
            metrics.append(values)
        return state, metrics


def _in_segments(
    chain: _Chain,
) -> Callable[[PyTree, Sequence[PyTree]], tuple[PyTree, list[PyTree]]]:
    """The chain with segments of about sqrt(n) steps rematerialised, and each step within them."""
    segment = rematerialise(_Chain(rematerialise(chain.step)))

    def run(state: PyTree, batches: Sequence[PyTree]) -> tuple[PyTree, list[PyTree]]:
        size = max(1, math.isqrt(len(batches)))
        metrics: list[PyTree] = []
        for start in range(0, len(batches), size):
            state, values = segment(state, list(batches[start : start + size]))
            metrics += values
        return state, metrics

    return run
