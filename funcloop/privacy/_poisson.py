"""Poisson samples of fixed shape: every example is in every batch with the same probability."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from funcloop import random, tree
from funcloop._errors import ArgumentError, ShapeError
from funcloop._types import Batch, Key, PyTree


class PoissonBatch(NamedTuple):
    """One sample, padded.

    Attributes:
        indices: int64, (pad_to,); zero where there is padding.
        mask: float32, (pad_to,): one for an example, zero for padding.
        left_out: How many examples did not fit, 0-d int64; each of them breaks the accounting.
    """

    indices: Tensor
    mask: Tensor
    left_out: Tensor


class PoissonBatches:
    """An endless sequence of Poisson samples; batch n is a function of the key and n.

    Made by `poisson_batches`. Its state is one number, `step`: the next batch.
    """

    def __init__(
        self,
        key: Key,
        examples: int,
        probability: float,
        pad_to: int,
        on_truncation: str,
        step: int,
    ) -> None:
        self._key, self._examples, self._probability = key, examples, probability
        self._on_truncation, self.pad_to, self.step = on_truncation, pad_to, step

    def at(self, step: int | Tensor) -> PoissonBatch:
        """Batch number `step`; pure, and jittable. It truncates without a word: see `left_out`."""
        key = random.fold_in(self._key, step)
        chosen = random.uniform(key, (self._examples,), dtype=torch.float64) < self._probability
        count = chosen.sum()
        order = torch.argsort(chosen.to(torch.int8), descending=True, stable=True)[: self.pad_to]
        mask = torch.arange(self.pad_to, device=order.device) < count
        if order.shape[0] < self.pad_to:
            order = torch.nn.functional.pad(order, (0, self.pad_to - order.shape[0]))
        left_out = (count - self.pad_to).clamp(min=0)
        return PoissonBatch(torch.where(mask, order, 0), mask.to(torch.float32), left_out)

    def __iter__(self) -> Iterator[PoissonBatch]:
        """From `step` on, which moves along.

        Raises:
            ShapeError: a sample does not fit into `pad_to`.
        """
        while True:
            batch = self.at(self.step)
            if self._on_truncation == "refuse" and int(batch.left_out):
                raise ShapeError(
                    "a truncated Poisson sample has another privacy cost",
                    f"batch {self.step} has {int(batch.left_out)} more than {self.pad_to} examples",
                    'raise pad_to, or look at `left_out` with on_truncation="report"',
                )
            self.step += 1
            yield batch

    def epoch(self, number: int, start: int = 0) -> Iterator[PoissonBatch]:
        """The one epoch there is, which never ends, from batch `start` on."""
        self.step = start
        return iter(self)

    def of(self, data: PyTree) -> PoissonData:
        """The same with the examples in the place of their indices: `(*data, mask)`."""
        return PoissonData(self, data)


class PoissonData:
    """Poisson samples of a data set, as `loop.fit` takes them."""

    def __init__(self, batches: PoissonBatches, data: PyTree) -> None:
        self._batches, self._data = batches, data

    def __iter__(self) -> Iterator[Batch]:
        """`(*data, mask)` for a tuple of tensors, `(data, mask)` for another tree."""
        for batch in self._batches:
            taken = tree.map(lambda x, i=batch.indices: x[i.to(x.device)], self._data)
            yield (*taken, batch.mask) if isinstance(taken, tuple) else (taken, batch.mask)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The one epoch there is, which never ends, from batch `start` on."""
        self._batches.step = start
        return iter(self)


def poisson_batches(
    key: Key,
    n: int,
    sampling_probability: float,
    pad_to: int | None = None,
    *,
    on_truncation: Literal["refuse", "report"] = "refuse",
    step: int = 0,
) -> PoissonBatches:
    """Batches in which each of `n` examples is with the same probability, independently.

    This is what the accounting of DP-SGD assumes; shuffled batches of one size are something else.
    All batches have the shape `(pad_to,)` with a mask, so nothing re-traces; some may be empty.

    Args:
        key: Batch m draws from `fold_in(key, m)`.
        n: How many examples there are.
        sampling_probability: Of each example in each batch, in (0, 1].
        pad_to: The shape of a batch. By default so large that a sample fails to fit less than once
            in 10^12 batches.
        on_truncation: `refuse` raises when a sample does not fit, `report` counts in `left_out`
            what was left out.
        step: The first batch; to resume, the `step` that was saved.

    Raises:
        ArgumentError: a number is out of range.

    >>> batches = poisson_batches(random.key(0), n=1000, sampling_probability=0.05)
    >>> first = next(iter(batches))
    >>> first.indices.shape == first.mask.shape == (batches.pad_to,), batches.step
    (True, 1)
    """
    if not 0 < sampling_probability <= 1:
        raise ArgumentError(
            "a sampling probability is in (0, 1]", str(sampling_probability), "correct it"
        )
    size = _roomy(n, sampling_probability) if pad_to is None else pad_to
    if n < 1 or size < 1:
        raise ArgumentError(
            "there is at least one example, and room for one", f"{n=}, {size=}", "correct it"
        )
    if on_truncation not in ("refuse", "report"):
        raise ArgumentError("on_truncation= is refuse or report", repr(on_truncation), "choose one")
    return PoissonBatches(key, n, sampling_probability, size, on_truncation, step)


def _roomy(n: int, probability: float) -> int:
    """A size that a binomial sample exceeds with probability below 1e-12 (Bernstein)."""
    mean, tail = n * probability, 12 * math.log(10)
    spread = tail / 3 + math.sqrt(tail**2 / 9 + 2 * mean * (1 - probability) * tail)
    return max(1, min(n, math.ceil(mean + spread)))
