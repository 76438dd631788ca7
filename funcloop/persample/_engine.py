"""What every engine returns: losses of the units, and their gradients in some form."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from funcloop._compat import storage_of
from funcloop._loss import weights_of
from funcloop._types import Aux, Buffers, Metrics
from funcloop.persample._factor import Dense, Factor
from funcloop.persample._merge import inner, merge
from funcloop.persample._numbers import flat, sum_of, wide
from funcloop.persample._outer import Outer
from funcloop.persample._piece import Piece
from funcloop.persample._units import Call


class Units(NamedTuple):
    """The units of one batch.

    Attributes:
        losses: (B,).
        weight: (B,), or None for ones.
        metrics: (B,) each.
        buffers: The new buffers.
        gradients: One for each parameter, in the order of the tree's leaves.
    """

    losses: Tensor
    weight: Tensor | None
    metrics: Metrics
    buffers: Buffers
    gradients: list[Gradient]


#: What finds the losses of all units and their gradients.
Engine: TypeAlias = "Callable[[Call], Units]"


class Gradient:
    """The per-unit gradients of one parameter, as factors of the pieces that the layers used.

    Args:
        leaf: The number of the parameter.
        params: All parameters by number.
        factors: What adds up to the gradients, each of the piece that was used.
        functions: The torch functions that used it, for `explain`.
        unexplained: Those of them without a rule.
    """

    def __init__(
        self,
        leaf: int,
        params: Sequence[Tensor],
        units: int,
        factors: Sequence[tuple[Piece, Factor]],
        functions: Sequence[str] = (),
        unexplained: Sequence[str] = (),
    ) -> None:
        self._leaf, self._params, self._units = leaf, params, units
        self.functions, self.unexplained = functions, unexplained
        grouped: dict[Hashable, tuple[Piece, list[Factor]]] = {}
        for piece, factor in factors:
            grouped.setdefault(piece.key(), (piece, []))[1].append(factor)
        self._parts = [(piece, merge(parts)) for piece, parts in grouped.values()]
        if not _disjoint([piece for piece, _ in self._parts], params):
            # Norms of overlapping or mixed pieces do not add up: go to the parameter itself.
            rows = [Dense(self._rows_of(piece, parts)) for piece, parts in self._parts]
            self._parts = [(Piece(leaf), merge(rows))]

    def squared_norm(self) -> Tensor:
        """(B,), in at least float32."""
        total = self._zeros()
        for _, parts in self._parts:
            for place, part in enumerate(parts):
                total = total + part.squared_norm()
                for other in parts[:place]:
                    total = total + 2 * inner(part, other)
        return total

    def weighted(self, coefficients: Tensor, mask: bool) -> Tensor:
        """`sum_n coefficients[n] * gradient[n]`, with the parameter's shape, at least float32.

        Rounding it is left to the caller: a rounded sum can move by more than what was added to it.
        """
        param = wide(self._params[self._leaf])
        total: Tensor | None = None
        for piece, parts in self._parts:
            summed = sum_of([part.weighted(coefficients, mask) for part in parts])
            term = self._pull_back(piece, summed)
            total = term if total is None else total + term
        if total is None:
            return torch.zeros_like(param)
        return total.to(param.dtype).reshape(param.shape)

    def rows(self) -> Tensor:
        """The gradients themselves, (B, *shape), with the dtype of the parameter."""
        param = self._params[self._leaf]
        total: Tensor | None = None
        for piece, parts in self._parts:
            term = self._rows_of(piece, parts)
            total = term if total is None else total + term
        if total is None:
            return param.new_zeros((self._units, *param.shape))
        return total.to(param.dtype)

    def pairwise(self, other: Gradient) -> Tensor:
        """The inner products of every unit here with every one there, (B, B')."""
        mine, theirs = self._as_outer(), other._as_outer()
        if mine is not None and theirs is not None and mine.groups == theirs.groups:
            return mine.pairwise(theirs)
        return flat(wide(self.rows())) @ flat(wide(other.rows())).conj().mT

    def _as_outer(self) -> Outer | None:
        """The only factor, where it is a sum of outer products for the parameter itself."""
        if len(self._parts) != 1 or self._parts[0][0].leaf is None or len(self._parts[0][1]) != 1:
            return None
        (factor,) = self._parts[0][1]
        return factor if isinstance(factor, Outer) else None

    def describe(self) -> str:
        """How the norm is computed."""
        kinds = [part.describe() for _, parts in self._parts for part in parts]
        return "; ".join(dict.fromkeys(kinds)) or "unused, zero"

    def _zeros(self) -> Tensor:
        param = wide(self._params[self._leaf])
        return torch.zeros(self._units, dtype=param.dtype.to_real(), device=param.device)

    def _pull_back(self, piece: Piece, gradient: Tensor) -> Tensor:
        """The parameter's gradient, from that of a piece of it."""
        if piece.leaf is not None:
            return gradient
        value, pull = self._vjp(piece)
        return pull(gradient.to(value.dtype))[0]

    def _rows_of(self, piece: Piece, parts: Sequence[Factor]) -> Tensor:
        rows = sum_of([part.rows() for part in parts])
        if piece.leaf is not None:
            return rows
        value, pull = self._vjp(piece)
        return torch.vmap(lambda row: pull(row)[0])(rows.to(value.dtype))

    def _vjp(self, piece: Piece) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
        """The piece's value, and the way back from its gradient."""
        others, param = dict(enumerate(self._params)), self._params[self._leaf]
        at = wide(param) if piece.moved else param  # numbers that only move are not rounded
        value, pull, *_ = torch.func.vjp(lambda p: piece.value({**others, self._leaf: p}), at)
        return value, pull


def _disjoint(pieces: Sequence[Piece], params: Sequence[Tensor]) -> bool:
    """Whether the pieces surely hold different numbers of a parameter, each at most once."""
    if not all(piece.moved for piece in pieces):
        return False
    if len(pieces) < 2:
        return True
    spans = [_span(piece, params) for piece in pieces]
    known = sorted(span for span in spans if span is not None)
    ends = [0, *(end for _, end in known)]
    return len(known) == len(pieces) and all(
        start >= end for (start, _), end in zip(known, ends, strict=False)
    )


def _span(piece: Piece, params: Sequence[Tensor]) -> tuple[int, int] | None:
    """Where in the parameter's memory the piece lies; None where it is a copy."""
    (leaf,) = piece.leaves()
    value = piece.value(dict(enumerate(params)))
    if storage_of(value) != storage_of(params[leaf]):
        return None
    start = int(value.storage_offset())
    reach = sum((n - 1) * int(s) for n, s in zip(value.shape, value.stride(), strict=True))
    return start, start + reach + 1


def weights_of_units(units: Units) -> Tensor:
    """Weight of each unit in at least float32, (B,)."""
    return weights_of(units.losses, Aux({}, {}, units.weight))
