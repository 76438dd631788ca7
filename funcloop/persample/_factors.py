"""Per-sample gradients of one tensor as factors: norms and weighted sums without the gradients.

The gradient of a weight for example n is often a sum of T outer products, `sum_t l_t r_t^T`. Its
norm follows from two (T, T) Gram matrices (Goodfellow 2015, arXiv 1510.01799; Li et al. 2022, arXiv
2110.05679), and a weighted sum over examples is one product, as in the plain backward ("book-
keeping", Bu et al. 2023, arXiv 2210.00038).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

#: How many operations of a matrix product cost as much as moving one byte (measured on CPU).
_OPERATIONS_PER_BYTE = {"cpu": 8, "cuda": 16}


class Factor(Protocol):
    """The per-sample gradients of one tensor, in whatever form is the cheapest to hold."""

    def squared_norm(self) -> Tensor:
        """(B,), in at least float32."""
        ...

    def weighted(self, coefficients: Tensor, mask: bool) -> Tensor:
        """`sum_n coefficients[n] * gradient[n]`; with `mask`, a zero coefficient hides a NaN."""
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
        return _sum_squares(self._values)

    def weighted(self, coefficients: Tensor, mask: bool) -> Tensor:
        values = wide(self._values)
        kept = _hide(values, coefficients) if mask else values
        total = coefficients.to(kept.dtype) @ flat(kept)
        return total.reshape(values.shape[1:])

    def rows(self) -> Tensor:
        return self._values

    def describe(self) -> str:
        return f"materialised, {self._values[0].numel()} numbers an example"


class Outer:
    """Sums of outer products in G groups: `gradient[n, g] = left[n, g]^T right[n, g]`.

    Args:
        left: (B, G, T, a).
        right: (B, G, T, b).
        shape: That of the weight; G * a * b numbers.
    """

    def __init__(self, left: Tensor, right: Tensor, shape: Sequence[int]) -> None:
        self._left, self._right, self._shape = left, right, torch.Size(shape)
        self._rows: Tensor | None = None

    @property
    def groups(self) -> tuple[int, int, int]:
        """G, a and b."""
        return self._left.shape[1], self._left.shape[3], self._right.shape[3]

    @classmethod
    def joined(cls, parts: Sequence[Outer]) -> Outer:
        """Several sums as one: the weight was used more than once."""
        left = torch.cat([part._left for part in parts], 2)
        right = torch.cat([part._right for part in parts], 2)
        return cls(left, right, parts[0]._shape)

    def squared_norm(self) -> Tensor:
        left, right = wide(self._left), wide(self._right)
        if left.shape[2] == 1:
            return (left.square().sum((2, 3)) * right.square().sum((2, 3))).sum(1)
        if self._gram_is_cheaper():
            return ((left @ left.mT) * (right @ right.mT)).sum((1, 2, 3))
        return _sum_squares(self._materialised())

    def weighted(self, coefficients: Tensor, mask: bool) -> Tensor:
        if self._rows is not None:
            return Dense(self._rows).weighted(coefficients, mask).reshape(self._shape)
        left, right = _factor_dtype(self._left), _factor_dtype(self._right)
        c = coefficients[:, None, None, None].to(left.dtype)
        if left.shape[3] <= right.shape[3]:
            left = left * c
        else:
            right = right * c
        if mask:
            left, right = _hide(left, coefficients), _hide(right, coefficients)
        groups, a, b = self.groups
        if groups == 1:  # one plain product, as the backward has it
            return (left.reshape(-1, a).mT @ right.reshape(-1, b)).reshape(self._shape)
        left = left.transpose(0, 1).reshape(groups, -1, a)
        right = right.transpose(0, 1).reshape(groups, -1, b)
        return (left.mT @ right).reshape(self._shape)

    def rows(self) -> Tensor:
        return self._materialised().reshape(-1, *self._shape)

    def inner(self, other: Factor) -> Tensor:
        """The inner products with another gradient of the same weight, (B,)."""
        groups, a, b = self.groups
        left, right = wide(self._left), wide(self._right)
        if isinstance(other, Rows) and groups == 1:
            index, values = other.index, wide(other.values)
            picked = left[:, 0].gather(2, index[:, None].expand(-1, left.shape[2], -1))  # (B, S, T)
            return (picked * (right[:, 0] @ values.mT)).sum((1, 2))
        rows = wide(other.rows()).reshape(-1, groups, a, b)
        return ((right @ rows.mT) * left).sum((1, 2, 3))

    def pairwise(self, other: Outer) -> Tensor:
        """The inner products of every example here with every one there, (B, B')."""
        if self._left.shape[2] == other._left.shape[2] == 1:
            left, right = (wide(x)[:, :, 0].transpose(0, 1) for x in (self._left, self._right))
            there = (wide(x)[:, :, 0].permute(1, 2, 0) for x in (other._left, other._right))
            return ((left @ next(there)) * (right @ next(there))).sum(0)
        return flat(wide(self.rows())) @ flat(wide(other.rows())).mT

    def describe(self) -> str:
        if self._left.shape[2] == 1:
            return "product of the norms of input and output gradient"
        if self._gram_is_cheaper():
            return f"Gram matrices of {self._left.shape[2]} positions"
        return f"materialised, {self._shape.numel()} numbers an example"

    def _materialised(self) -> Tensor:
        if self._rows is None:
            self._rows = wide(self._left).mT @ wide(self._right)
        return self._rows

    def _gram_is_cheaper(self) -> bool:
        """Counted: two Gram matrices, against writing the gradients once and reading them twice."""
        _, a, b = self.groups
        t, move = self._left.shape[2], _cost_of_number(self._left)
        return 2 * t * t * (a + b) + 3 * t * t * move < 3 * a * b * move


class Rows:
    """A sum of rows: `gradient[n, index[n, t]] += values[n, t]`.

    Args:
        index: int64, (B, T).
        values: (B, T, d).
        shape: That of the weight, (V, d).
    """

    def __init__(self, index: Tensor, values: Tensor, shape: Sequence[int]) -> None:
        self.index, self.values, self._shape = index, values, torch.Size(shape)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Several sums as one."""
        index = torch.cat([part.index for part in parts], 1)
        return cls(index, torch.cat([part.values for part in parts], 1), parts[0]._shape)

    def squared_norm(self) -> Tensor:
        values = wide(self.values)
        if self._gram_is_cheaper():
            same = self.index[:, :, None] == self.index[:, None, :]  # (B, T, T)
            return torch.where(same, values @ values.mT, 0).sum((1, 2))
        return _sum_squares(wide(self.rows()))

    def weighted(self, coefficients: Tensor, mask: bool) -> Tensor:
        values = _factor_dtype(self.values)
        values = values * coefficients[:, None, None].to(values.dtype)
        if mask:
            values = _hide(values, coefficients)
        total = torch.zeros(self._shape, dtype=values.dtype, device=values.device)
        return total.index_add(0, self.index.reshape(-1), values.flatten(0, 1))

    def rows(self) -> Tensor:
        batch, (vocabulary, width) = self.index.shape[0], self._shape
        values = wide(self.values)
        start = torch.arange(batch, device=self.index.device)[:, None] * vocabulary
        total = torch.zeros(batch * vocabulary, width, dtype=values.dtype, device=values.device)
        total = total.index_add(0, (self.index + start).reshape(-1), values.flatten(0, 1))
        return total.reshape(batch, *self._shape)

    def describe(self) -> str:
        if self._gram_is_cheaper():
            return f"Gram matrix of {self.index.shape[1]} rows"
        return f"materialised, {self._shape.numel()} numbers an example"

    def _gram_is_cheaper(self) -> bool:
        t, move = self.index.shape[1], _cost_of_number(self.values)
        return 2 * t * t * self._shape[1] + 3 * t * t * move < 3 * self._shape.numel() * move


def _cost_of_number(like: Tensor) -> int:
    """Operations that cost as much as moving one number of these."""
    return max(4, like.element_size()) * _OPERATIONS_PER_BYTE.get(like.device.type, 16)


def merge(factors: Sequence[Factor]) -> list[Factor]:
    """The same sum of gradients in at most one factor of each kind."""
    outers = [f for f in factors if isinstance(f, Outer)]
    rows = [f for f in factors if isinstance(f, Rows)]
    dense = [f for f in factors if not isinstance(f, (Outer, Rows))]
    if len({f.groups for f in outers}) > 1:  # one weight in differently grouped layers
        outers, dense = [], [*dense, *(Dense(f.rows()) for f in outers)]
    merged: list[Factor] = []
    if outers:
        merged.append(outers[0] if len(outers) == 1 else Outer.joined(outers))
    if rows:
        merged.append(rows[0] if len(rows) == 1 else Rows.joined(rows))
    if dense:
        merged.append(dense[0] if len(dense) == 1 else Dense(sum_of([f.rows() for f in dense])))
    return merged


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """Their sum; of one, itself."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def inner(a: Factor, b: Factor) -> Tensor:
    """The inner product of two gradients of the same tensor for each example, (B,)."""
    if isinstance(a, Outer):
        return a.inner(b)
    if isinstance(b, Outer):
        return b.inner(a)
    return (flat(wide(a.rows())) * flat(wide(b.rows()))).sum(1)


def flat(x: Tensor) -> Tensor:
    """(B, *shape) as (B, numel)."""
    return x.reshape(x.shape[0], -1)


def wide(x: Tensor) -> Tensor:
    """In at least float32, where squares of half-precision numbers neither overflow nor vanish."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _factor_dtype(x: Tensor) -> Tensor:
    """float16 has too small a range for scaled factors; bfloat16 is left to the matrix units."""
    return x.float() if x.dtype is torch.float16 else x


def _sum_squares(x: Tensor) -> Tensor:
    x = flat(wide(x))
    return (x * x.conj()).real.sum(1) if x.is_complex() else x.square().sum(1)


def _hide(x: Tensor, coefficients: Tensor) -> Tensor:
    """Zeros for what is not finite where the coefficient is zero; its derivative stays right."""
    absent = coefficients.reshape(-1, *[1] * (x.ndim - 1)) == 0
    return torch.where(absent & ~x.isfinite(), 0, x)
