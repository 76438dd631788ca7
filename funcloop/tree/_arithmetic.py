"""Arithmetic of trees, leaf by leaf and matched by key; each leaf keeps its dtype and device."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._pytree import PyTree, flatten, flatten_like, tree_map


def add(a: PyTree, b: PyTree) -> PyTree:
    """`a + b`, with the dtypes of `a`.

    >>> import torch
    >>> add({"w": torch.tensor(1.0)}, {"w": torch.tensor(2.0)})
    {'w': tensor(3.)}
    """
    return tree_map(lambda x, y: (x + y).to(x.dtype), a, b)


def sub(a: PyTree, b: PyTree) -> PyTree:
    """`a - b`, with the dtypes of `a`.

    >>> import torch
    >>> sub([torch.tensor(3.0)], [torch.tensor(1.0)])
    [tensor(2.)]
    """
    return tree_map(lambda x, y: (x - y).to(x.dtype), a, b)


def mul(a: PyTree, b: PyTree) -> PyTree:
    """`a * b` elementwise, with the dtypes of `a`.

    >>> import torch
    >>> mul([torch.tensor(3.0)], [torch.tensor(2.0)])
    [tensor(6.)]
    """
    return tree_map(lambda x, y: (x * y).to(x.dtype), a, b)


def neg(a: PyTree) -> PyTree:
    """`-a`.

    >>> import torch
    >>> neg((torch.tensor(1), None))
    (tensor(-1), None)
    """
    return tree_map(torch.neg, a)


def scale(a: PyTree, factor: float | Tensor) -> PyTree:
    """`factor * a`, with the dtypes of `a`.

    >>> import torch
    >>> scale([torch.ones(2, dtype=torch.bfloat16)], torch.tensor(0.5))
    [tensor([0.5000, 0.5000], dtype=torch.bfloat16)]
    """
    return tree_map(lambda x: (x * factor).to(x.dtype), a)


def add_scaled(a: PyTree, factor: float | Tensor, b: PyTree) -> PyTree:
    """`a + factor * b`, with the dtypes of `a`.

    >>> import torch
    >>> add_scaled([torch.tensor(1.0)], -0.5, [torch.tensor(4.0)])
    [tensor(-1.)]
    """
    return tree_map(lambda x, y: (x + factor * y).to(x.dtype), a, b)


def lerp(a: PyTree, b: PyTree, weight: float | Tensor) -> PyTree:
    """`a + weight * (b - a)`, with the dtypes of `a`.

    >>> import torch
    >>> lerp([torch.tensor(1.0)], [torch.tensor(3.0)], 0.25)
    [tensor(1.5000)]
    """
    return tree_map(lambda x, y: (x + weight * (y - x)).to(x.dtype), a, b)


def where(condition: Tensor, a: PyTree, b: PyTree) -> PyTree:
    """`a` where the 0-d (or broadcastable) condition holds, otherwise `b`.

    >>> import torch
    >>> where(torch.tensor(False), [torch.tensor(1)], [torch.tensor(2)])
    [tensor(2)]
    """
    return tree_map(lambda x, y: torch.where(condition, x, y), a, b)


def vdot(a: PyTree, b: PyTree) -> Tensor:
    """Inner product over all leaves, 0-d, added up in at least float32; conjugates `a`.

    >>> import torch
    >>> vdot({"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([3.0, 4.0])})
    tensor(11.)
    """
    leaves, structure = flatten(a)
    total = torch.zeros((), device=leaves[0].device if leaves else None)
    for x, y in zip(leaves, flatten_like(structure, b, "b"), strict=True):
        wide = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
        total = total + (x.to(wide).conj() * y.to(wide)).sum()
    return total


def all_finite(a: PyTree) -> Tensor:
    """Whether no leaf holds an inf or a NaN, 0-d bool; true for an empty tree.

    >>> import torch
    >>> all_finite([torch.tensor([1.0, float("nan")]), torch.tensor(1)])
    tensor(False)
    """
    leaves = flatten(a)[0]
    if not leaves:
        return torch.tensor(True)
    return torch.stack([torch.isfinite(x).all() for x in leaves]).all()


def zeros_like(a: PyTree, dtype: torch.dtype | None = None) -> PyTree:
    """Zeros of the same shapes, and of `dtype` where it is given.

    >>> import torch
    >>> zeros_like({"w": torch.ones(2)}, torch.float64)
    {'w': tensor([0., 0.], dtype=torch.float64)}
    """
    return tree_map(lambda x: torch.zeros_like(x, dtype=dtype), a)


def ones_like(a: PyTree, dtype: torch.dtype | None = None) -> PyTree:
    """Ones of the same shapes, and of `dtype` where it is given.

    >>> import torch
    >>> ones_like([torch.zeros(2)])
    [tensor([1., 1.])]
    """
    return tree_map(lambda x: torch.ones_like(x, dtype=dtype), a)
