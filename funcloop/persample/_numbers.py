"""Arithmetic of tensors with a leading example dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: How many operations of a matrix product cost as much as moving one byte. On two AVX-512 cores it
#: is 4 in the caches and 7 beyond them, for the small products of Gram matrices.
_OPERATIONS_PER_BYTE = {"cpu": 6, "cuda": 16}


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """Their sum; of one, itself."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def flat(x: Tensor) -> Tensor:
    """(B, *shape) as (B, numel)."""
    return x.reshape(x.shape[0], -1)


def wide(x: Tensor) -> Tensor:
    """In at least float32, where squares of half-precision numbers neither overflow nor vanish."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def sum_squares(x: Tensor) -> Tensor:
    """The squared norm of each row, (B,), in at least float32."""
    x = flat(wide(x))
    return (x * x.conj()).real.sum(1) if x.is_complex() else x.square().sum(1)


def hide(x: Tensor, coefficients: Tensor) -> Tensor:
    """Zeros for what is not finite where the coefficient is zero; its derivative stays right."""
    absent = coefficients.reshape(-1, *[1] * (x.ndim - 1)) == 0
    return torch.where(absent & ~x.isfinite(), 0, x)


def cost_of_number(like: Tensor) -> int:
    """Operations that cost as much as moving one number of these."""
    return max(4, like.element_size()) * _OPERATIONS_PER_BYTE.get(like.device.type, 16)
