"""Per-sample gradients of one tensor in whatever form; the plainest holds them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from funcloop.persample._numbers import flat, hide, sum_squares, wide


class Factor(Protocol):
    """The per-sample gradients of one tensor, in whatever form is the cheapest to hold."""

    def squared_norm(self) -> Tensor:
        """(B,), in at least float32."""
        ...

    def weighted(self, coefficients: Tensor, mask: bool) -> Tensor:
        """`sum_n coefficients[n] * gradient[n]`, in at least float32.

        With `mask`, a zero coefficient hides a NaN.
        """
        ...

    def rows(self) -> Tensor:
        """The gradients themselves, (B, *shape)."""
        ...

    def describe(self) -> str:
        """What is computed, in a few words."""
        ...


class Dense:
    """The gradients themselves.

    Args:
        values: (B, *shape).
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values

    def squared_norm(self) -> Tensor:
        return sum_squares(self._values)

    def weighted(self, coefficients: Tensor, mask: bool) -> Tensor:
        values = wide(self._values)
        kept = hide(values, coefficients) if mask else values
        total = coefficients.to(kept.dtype) @ flat(kept)
        return total.reshape(values.shape[1:])

    def rows(self) -> Tensor:
        return self._values

    def describe(self) -> str:
        return f"materialised, {self._values[0].numel()} numbers an example"
