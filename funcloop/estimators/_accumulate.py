"""One gradient from several parts of a batch, in the memory of one part."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from funcloop import random, tree
from funcloop._barrier import barrier
from funcloop._errors import ArgumentError, ShapeError
from funcloop._loss import parts_given_by
from funcloop._purity import no_outer_graph
from funcloop._sum import EstimateSum
from funcloop._types import Batch, Buffers, Estimate, GradFn, Key, Metrics, Params

#: What a GradFn says about itself that is as true of its accumulation.
_CARRIED = ("init", "sensitivity", "loss_scale")


class Accumulated:
    """What `accumulate` returns: a GradFn.

    Attributes:
        per_example: Metrics in which each example counts once, whatever it weighs; as the GradFn
            inside says. They are averaged by the number of examples in each part.
    """

    def __init__(
        self, grad_fn: GradFn, microbatches: int, per_example: tuple[str, ...] = ()
    ) -> None:
        self._grad_fn, self._microbatches = grad_fn, microbatches
        self.per_example = getattr(grad_fn, "per_example", per_example)
        for name in _CARRIED:
            if hasattr(grad_fn, name):
                setattr(self, name, getattr(grad_fn, name))
        if hasattr(grad_fn, "unrounded"):  # noise is added to a sum that was never rounded
            unrounded = grad_fn.unrounded  # type: ignore[attr-defined]  # it has one
            self.unrounded = Accumulated(unrounded, microbatches, self.per_example)

    def __call__(self, params: Params, buffers: Buffers, batch: Batch, key: Key) -> Estimate:
        """The Estimate: see `accumulate`."""
        with no_outer_graph(), parts_given_by("accumulation"):
            total: EstimateSum | None = None
            counted: list[tuple[int, Metrics]] = []
            for n, part in enumerate(_parts(batch, self._microbatches)):
                if total is not None:
                    part = _after(total.leaves(), part)
                estimate = self._grad_fn(params, buffers, part, random.fold_in(key, n))
                if total is None:
                    total = EstimateSum(estimate)
                else:
                    total.add(estimate)
                means = {name: estimate.metrics[name] for name in self.per_example}
                counted.append((tree.leaves(part)[0].shape[0], means))
                del estimate  # not to be held beside the next one
            assert total is not None  # there is at least one part
            mean = total.mean()
            return mean._replace(metrics={**mean.metrics, **_mean_over_examples(counted)})


def accumulate(grad_fn: GradFn, microbatches: int) -> GradFn:
    """The gradient of a batch from parts of it, one after the other: exact for any weights.

    Each part's Estimate is added with its weight, in at least float32, and the sum is divided once;
    so the result is that of the whole batch (to rounding) however uneven the parts are and whatever
    their weights, also where a part weighs nothing. Only one part's activations are held at a time,
    in eager mode and in a compiled graph, which contains every part (unrolled).

    Part `n` draws from `fold_in(key, n)`. Every part starts from the same buffers, and the new ones
    are averaged by weight (counters: the largest), so running statistics move once a batch. Batch
    normalisation normalises each part by its own statistics; where it should see none,
    freeze it: `train={"*.bn*": False, "": True}`.

    Args:
        grad_fn: Any GradFn of loss functions that return one loss for each example.
        microbatches: In how many parts each batch is cut along its leading dimension. The sizes
            differ by at most one; a batch of fewer examples is cut into single ones.

    Returns:
        A GradFn. A batch that weighs nothing gives zero gradients; the optimizer still runs.

    Raises:
        ArgumentError: `microbatches` is not positive, or `grad_fn` has to see a batch whole
            (noise enters once; units lie along another dimension).
        ShapeError: at the call, where leaves of the batch differ in their leading dimension, or the
            losses are averaged already: their number would be lost.

    >>> import torch
    >>> from funcloop.estimators import Aux, value_and_grad
    >>> def loss_fn(params, buffers, batch, key):
    ...     slope, tokens = batch
    ...     return params * slope, Aux(buffers, {}, weight=tokens)
    >>> grad_fn = accumulate(value_and_grad(loss_fn), microbatches=2)
    >>> batch = torch.tensor([10.0, 2.0]), torch.tensor([1.0, 3.0])
    >>> grad_fn(torch.tensor(1.0), {}, batch, random.key(0)).grads
    tensor(4.)
    """
    if microbatches < 1:
        raise ArgumentError("a batch has at least one part", f"{microbatches}", "give a count")
    if hasattr(grad_fn, "once_per_batch"):
        raise ArgumentError(
            "this gradient is taken once for each batch",
            str(grad_fn.once_per_batch),  # type: ignore[attr-defined]  # it has one
            "accumulate the gradient inside of it, or use its own microbatch=",
        )
    if getattr(grad_fn, "unit_axis", None):
        raise ArgumentError(
            "a batch is cut along its leading dimension",
            f"units lie along dimension {grad_fn.unit_axis}, and would be cut in two",  # type: ignore[attr-defined]  # it has one
            "use microbatch= of the per-sample gradient",
        )
    return Accumulated(grad_fn, microbatches)


def _parts(batch: Batch, count: int) -> Iterator[Batch]:
    leaves, structure = tree.flatten(batch)
    if not leaves or any(not x.ndim or x.shape[0] != leaves[0].shape[0] for x in leaves):
        found = ", ".join(f"{p or 'the batch'} {tuple(x.shape)}" for p, x in tree.items(batch))
        raise ShapeError(
            "every leaf of a batch has the examples in its leading dimension",
            found or "a batch without leaves",
            "put what is shared by all examples into buffers",
        )
    examples = leaves[0].shape[0]
    count = max(1, min(count, examples))  # no part is empty, unless the batch is
    for n in range(count):
        # In this order of operations also for a size that jit has made a symbol.
        start, end = n * examples // count, (n + 1) * examples // count
        yield tree.unflatten(structure, [x.narrow(0, start, end - start) for x in leaves])


def _mean_over_examples(parts: list[tuple[int, Metrics]]) -> Metrics:
    """The mean over all examples, from how many each part has and the mean over these."""
    examples = max(1, sum(size for size, _ in parts))
    return {
        name: torch.stack([size * means[name] for size, means in parts]).sum() / examples
        for name in parts[0][1]
    }


def _after(sums: list[Tensor], part: Batch) -> Batch:
    """The part, which a compiler cannot look at before the sums are there.

    It would otherwise be free to run all forward passes first.
    """
    leaves, structure = tree.flatten(part)
    return tree.unflatten(structure, barrier(leaves, sums))
