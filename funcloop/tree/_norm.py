"""The L2 norm of a whole tree, right for huge, tiny and zero values."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._pytree import PyTree, flatten


def norm(tree: PyTree) -> Tensor:
    """Square root of the sum of squares over all leaves, 0-d, at least float32.

    Squares are added up in float64, so that neither float32 gradients of 1e20 overflow nor small
    ones vanish. The derivative at zero is zero.

    >>> import torch
    >>> norm({"a": torch.tensor([3.0]), "b": torch.full((1,), 4.0, dtype=torch.bfloat16)})
    tensor(5.)
    >>> norm([torch.full((100,), 1e20)])
    tensor(1.0000e+21)
    """
    leaves = flatten(tree)[0]
    if not leaves:
        return torch.zeros(())
    wide = torch.float32
    for leaf in leaves:
        wide = torch.promote_types(wide, leaf.dtype)
    # vector_norm's derivative at zero is zero, where that of sqrt(sum(x * x)) is NaN.
    norms = [_vector_norm(leaf) for leaf in leaves]
    return torch.linalg.vector_norm(torch.stack(norms)).to(wide.to_real())


def _vector_norm(x: Tensor) -> Tensor:
    wide = torch.complex128 if x.is_complex() else torch.float64
    return torch.linalg.vector_norm(x, dtype=wide)
