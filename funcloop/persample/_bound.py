"""The bound that gradients are clipped to: one, one by the number of calls, or one a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError
from funcloop._types import Params, PyTree, Schedule

#: One bound, a bound by the number of calls, or, with `per_layer`, a tree of bounds.
MaxNorm: TypeAlias = "float | Tensor | Schedule | PyTree"


class Bound:
    """`max_norm` and `per_layer` as given to `clipped`.

    Attributes:
        scheduled: Whether it depends on the number of the call.
    """

    def __init__(self, max_norm: MaxNorm, per_layer: bool) -> None:
        self._max_norm, self._per_layer = max_norm, per_layer
        self.scheduled = callable(max_norm)
        for path, bound in [] if self.scheduled else tree.items(max_norm):
            if isinstance(bound, (int, float)) and not bound > 0:
                value = f"{path}={bound}" if path else str(bound)
                raise ArgumentError("max_norm is positive", value, "give a bound above zero")

    def each(self, params: Params, count: Tensor | None) -> list[float | Tensor]:
        """One bound for all tensors together, or one for each."""
        bound = self._at(count)
        if not self._per_layer:
            return [bound]
        if _is_number(bound):
            return [bound] * len(tree.leaves(params))
        return tree.flatten_like(tree.structure(params), bound, "max_norm")

    def joint(self, params: Params, count: Tensor | None) -> float | Tensor:
        """The largest norm of all tensors together."""
        bound = self._at(count)
        if not self._per_layer:
            return bound
        if params is None and _is_number(bound):
            raise ArgumentError(
                "a bound for every tensor adds up over the tensors",
                "sensitivity() without params",
                "pass params=",
            )
        each = tree.leaves(bound) if params is None else self.each(params, count)
        return _root_of_squares(each)

    def _at(self, count: Tensor | None) -> PyTree:
        if not callable(self._max_norm):
            return self._max_norm
        if count is None:
            raise ArgumentError(
                "a scheduled max_norm depends on the count", "no count", "pass count="
            )
        return self._max_norm(count)


def _is_number(bound: object) -> bool:
    return isinstance(bound, (int, float)) or (isinstance(bound, Tensor) and bound.ndim == 0)


def _root_of_squares(bounds: Sequence[float | Tensor]) -> float | Tensor:
    """The norm of a gradient whose tensors each have the norm that bounds them."""
    tensors = [b for b in bounds if isinstance(b, Tensor)]
    if not tensors:
        return math.hypot(*bounds)  # type: ignore[arg-type]  # numbers
    return torch.linalg.vector_norm(
        torch.stack([torch.as_tensor(b).to(tensors[0]) for b in bounds])
    )
