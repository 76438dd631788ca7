"""Matrix products sent to the library of torch's that multiplies them faster on this machine.

On the CPU `aten.mm` goes to the BLAS that torch was built with (MKL in its wheels), and oneDNN lies
beside it. Which of them is faster depends on the processor: on some AMD cores oneDNN reaches twice
the speed, on Intel's seldom more. Their results differ by rounding only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeGuard

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from funcloop.compile._calibration import faster_in_onednn
from funcloop.compile._onednn import OPERATORS, Product

_ATEN = torch.ops.aten
_NAMES = {_ATEN.mm.default: "mm", _ATEN.bmm.default: "bmm", _ATEN.addmm.default: "addmm"}


Chooser = Callable[[Iterable[Product]], set[Product]]


def choose_products(graph: GraphModule, choose: Chooser = faster_in_onednn) -> None:
    """Replace the float32 products of a traced graph that oneDNN computes faster.

    `FUNCLOOP_PRODUCTS=0` in the environment leaves them all as they are. So are products on other
    devices and of other dtypes, of unknown sizes, and those too small to gain.

    Args:
        graph: As traced; changed in place, and to be recompiled.
        choose: Says which kinds of products are faster in oneDNN; by default measured once on each
            machine.
    """
    found = {node: kind for node in graph.graph.nodes if (kind := _kind(node)) is not None}
    if not found or os.environ.get("FUNCLOOP_PRODUCTS") == "0":
        return
    chosen = choose(found.values())
    for node, kind in found.items():
        if kind in chosen:
            node.target = OPERATORS[kind.operator]


def _kind(node: Node) -> Product | None:
    """The product that a node computes, where oneDNN could compute it as well."""
    operator = _NAMES.get(node.target)  # type: ignore[arg-type]  # any target may be asked for
    if operator is None or node.kwargs:  # addmm's alpha and beta
        return None
    tensors = [argument.meta.get("val") for argument in node.args if isinstance(argument, Node)]
    plain = [tensor for tensor in tensors if _is_plain(tensor)]
    if len(plain) < len(tensors):
        return None
    *bias, a, b = plain
    sizes = (a.shape[0] if a.ndim == 3 else 1, *a.shape[-2:], b.shape[-1])
    if any(row.shape != b.shape[1:] for row in bias):  # one that is broadcast in another way
        return None
    forms = _transposed(a), _transposed(b)
    if 0 in sizes or None in forms:
        return None
    return Product(operator, sizes, forms)  # type: ignore[arg-type]  # None was excluded


def _is_plain(tensor: object) -> TypeGuard[Tensor]:
    return (
        isinstance(tensor, Tensor)
        and tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and tensor.layout == torch.strided
        and all(isinstance(number, int) for number in (*tensor.shape, *tensor.stride()))
    )


def _transposed(factor: Tensor) -> bool | None:
    """Whether the rows of a matrix lie side by side; None where neither rows nor columns do."""
    rows, columns = factor.stride()[-2:]
    height, width = factor.shape[-2:]
    if columns == 1 and rows >= width:
        return False
    return True if rows == 1 and columns >= height else None
