"""Per-sample gradients of a matrix: outer products, whose norms need no gradient.

The gradient of a weight for example n is often a sum of T outer products, `sum_t l_t r_t^T`. Its
norm follows from two (T, T) Gram matrices (Goodfellow 2015, arXiv 1510.01799; Li et al. 2022, arXiv
2110.05679), and a weighted sum over examples is one product, as in the plain backward ("book-
keeping", Bu et al. 2023, arXiv 2210.00038).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop.persample._factor import Dense, Factor
from funcloop.persample._numbers import (
    cost_of_number,
    flat,
    hide,
    sum_squares,
    wide,
)
from funcloop.persample._rows import Rows


class Outer:
    """Sums of outer products in G groups: `gradient[n, g] = left[n, g]^T right[n, g]`.

    Args:
        left: (B, G, T, a).
        right: (B, G, T, b). Of a convolution, b runs over the kernel and then, fastest, over the
            channels: so a patch is made of long runs of an image that lies channels last.
        shape: That of the weight; G * a for its first dimension and b for the others, of which
            the second (the channels) comes last.
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
        return sum_squares(self._materialised())

    def weighted(self, coefficients: Tensor, mask: bool) -> Tensor:
        if self._rows is not None:
            return self._as_weight(Dense(self._rows).weighted(coefficients, mask))
        left, right = wide(self._left), wide(self._right)
        c = coefficients[:, None, None, None].to(left.dtype)
        if left.shape[3] <= right.shape[3]:
            left = left * c
        else:
            right = right * c
        if mask:
            left, right = hide(left, coefficients), hide(right, coefficients)
        groups, a, b = self.groups
        if groups == 1:  # one plain product, as the backward has it
            return self._as_weight(left.reshape(-1, a).mT @ right.reshape(-1, b))
        left = left.transpose(0, 1).reshape(groups, -1, a)
        right = right.transpose(0, 1).reshape(groups, -1, b)
        return self._as_weight(left.mT @ right)

    def rows(self) -> Tensor:
        return self._as_weight(self._materialised(), len(self._left))

    def inner(self, other: Factor) -> Tensor:
        """The inner products with another gradient of the same weight, (B,)."""
        groups, a, b = self.groups
        left, right = wide(self._left), wide(self._right)
        if isinstance(other, Rows) and groups == 1:
            index, values = other.index, wide(other.values)
            picked = left[:, 0].gather(2, index[:, None].expand(-1, left.shape[2], -1))  # (B, S, T)
            return (picked * (right[:, 0] @ values.mT)).sum((1, 2))
        rows = wide(other.rows())
        rows = rows.movedim(2, -1) if len(self._shape) > 2 else rows
        rows = rows.reshape(-1, groups, a, b)
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

    def _as_weight(self, numbers: Tensor, *lead: int) -> Tensor:
        """Gradients (*lead, G, a, b) with the shape of the weight."""
        first, *rest = self._shape
        numbers = numbers.reshape(*lead, first, *rest[1:], *rest[:1])
        return numbers.movedim(-1, len(lead) + 1) if len(rest) > 1 else numbers

    def _materialised(self) -> Tensor:
        if self._rows is None:
            self._rows = wide(self._left).mT @ wide(self._right)
        return self._rows

    def _gram_is_cheaper(self) -> bool:
        """Counted: two Gram matrices, against writing the gradients once and reading them twice.

        That a Gram matrix reads both factors once more is not counted: they lie in the caches then.
        """
        _, a, b = self.groups
        t, move = self._left.shape[2], cost_of_number(self._left)
        return 2 * t * t * (a + b) + 3 * t * t * move < 3 * a * b * move
