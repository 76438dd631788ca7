"""Per-sample gradients of an embedding: a few rows of the table."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop.persample._numbers import cost_of_number, hide, sum_squares, wide


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
        return sum_squares(wide(self.rows()))

    def weighted(self, coefficients: Tensor, mask: bool) -> Tensor:
        values = wide(self.values)
        values = values * coefficients[:, None, None].to(values.dtype)
        if mask:
            values = hide(values, coefficients)
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
        t, move = self.index.shape[1], cost_of_number(self.values)
        return 2 * t * t * self._shape[1] + 3 * t * t * move < 3 * self._shape.numel() * move
