"""Many estimates as one: weighted sums held in at least float32, and divided once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from funcloop._pytree import PyTree, flatten, tree_map
from funcloop._types import Estimate


class EstimateSum:
    """The estimate from the examples of several, one added after the other.

    The same as folding them by `Estimate.combine`, but rounded to the dtypes of the first one only
    at the end, so that 257 bfloat16 gradients do not saturate; and integer weights and gradients
    are added without any rounding.
    """

    def __init__(self, first: Estimate) -> None:
        self._first: Estimate | None = first
        self._dtypes = tree_map(lambda x: x.dtype, first)
        self._buffers = first._replace(grads=(), metrics={}, buffers=_wide(first.buffers))
        self._sums = _weighted(first)

    def add(self, estimate: Estimate) -> None:
        """Add one more; its tensors are not kept."""
        self._first = None
        sums = _weighted(estimate)
        self._sums = tree_map(torch.add, self._sums, sums)
        wide = estimate._replace(grads=(), metrics={}, buffers=_wide(estimate.buffers))
        self._buffers = self._buffers.combine(wide)

    def leaves(self) -> list[Tensor]:
        """The sums so far."""
        return flatten((self._sums, self._buffers.weight))[0]

    def mean(self) -> Estimate:
        """The estimate of all that were added; one alone is returned as it was given."""
        if self._first is not None:
            return self._first
        weight = self._buffers.weight
        safe = torch.where(weight == 0, 1, weight)
        grads, loss, metrics = tree_map(lambda x: x / safe, self._sums)
        mean = Estimate(grads, loss, self._buffers.buffers, metrics, weight)
        return tree_map(lambda x, dtype: x.to(dtype), mean, self._dtypes)


def combine_all(estimates: Iterable[Estimate]) -> Estimate:
    """The estimate from the examples of all; at least one, and none is held longer than needed."""
    rest = iter(estimates)
    total = EstimateSum(next(rest))
    for estimate in rest:
        total.add(estimate)
    return total.mean()


def _weighted(estimate: Estimate) -> PyTree:
    weight = estimate.weight

    def product(x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        # What weighs nothing never contributes, also not a NaN.
        return torch.where(weight == 0, 0, wide * weight)

    return tree_map(product, (estimate.grads, estimate.loss, estimate.metrics))


def _wide(buffers: PyTree) -> PyTree:
    """Low-precision buffers in float32, the others as they are."""
    return tree_map(
        lambda b: b.float() if b.dtype in (torch.bfloat16, torch.float16) else b, buffers
    )
