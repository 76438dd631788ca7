"""Matrix products of oneDNN, as operators that a graph may hold.

Inductor's own code for oneDNN's products wants weights that are constant, hence our operators.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from funcloop._compat import onednn_linear


class Product(NamedTuple):
    """A kind of product: (M, K) times (K, N), `batch` of them.

    Attributes:
        operator: `mm`, `addmm` or `bmm`.
        sizes: (batch, M, K, N).
        transposed: Which of the two factors lie in memory as their transposes.
    """

    operator: str
    sizes: tuple[int, int, int, int]
    transposed: tuple[bool, bool]

    @property
    def operations(self) -> int:
        """Floating-point operations."""
        return 2 * math.prod(self.sizes)


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return onednn_linear(a, b.t(), None)


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return onednn_linear(a, b.t(), bias)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """One product after the other; each has all threads."""
    products = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    for product, left, right in zip(products, a, b, strict=True):
        product.copy_(onednn_linear(left, right.t(), None))
    return products


def _like_mm(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(*a.shape[:-1], b.shape[-1])


def _like_addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return _like_mm(a, b)


# Not `torch.library.custom_op`: its wrapper costs as much as a small product.
_LIBRARY = torch.library.Library("funcloop", "FRAGMENT")
for _schema, _run, _fake in (
    ("mm(Tensor a, Tensor b) -> Tensor", _mm, _like_mm),
    ("addmm(Tensor bias, Tensor a, Tensor b) -> Tensor", _addmm, _like_addmm),
    ("bmm(Tensor a, Tensor b) -> Tensor", _bmm, _like_mm),
):
    _LIBRARY.define(f"onednn_{_schema}")
    _name = f"onednn_{_schema.partition('(')[0]}"
    _LIBRARY.impl(_name, _run, "CPU")
    torch.library.register_fake(f"funcloop::{_name}", _fake, lib=_LIBRARY)

#: By the name of the operator of `torch.ops.aten` that computes the same.
OPERATORS = {
    "mm": torch.ops.funcloop.onednn_mm.default,
    "addmm": torch.ops.funcloop.onednn_addmm.default,
    "bmm": torch.ops.funcloop.onednn_bmm.default,
}
