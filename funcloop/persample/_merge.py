"""Sums and inner products of factors of one tensor."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from funcloop.persample._factor import Dense, Factor
from funcloop.persample._numbers import flat, sum_of, wide
from funcloop.persample._outer import Outer
from funcloop.persample._rows import Rows


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


def inner(a: Factor, b: Factor) -> Tensor:
    """The inner product of two gradients of the same tensor for each example, (B,)."""
    if isinstance(a, Outer):
        return a.inner(b)
    if isinstance(b, Outer):
        return b.inner(a)
    return (flat(wide(a.rows())) * flat(wide(b.rows()))).sum(1)
