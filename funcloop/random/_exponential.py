"""Exponential and Gumbel numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop._types import Key
from funcloop.random._floating import open_unit, resolve
from funcloop.random._stream import draw


def exponential(key: Key, shape: Sequence[int] = (), *, dtype: torch.dtype | None = None) -> Tensor:
    """Independent exponential numbers of rate one, always positive and finite.

    Args:
        key: int64, shape (*K, 2).
        shape: The shape for one key.
        dtype: Real floating; None is torch's default dtype.

    Returns:
        Shape (*K, *shape).

    Raises:
        ArgumentError: the dtype is not real floating.

    >>> from funcloop.random import key
    >>> bool(exponential(key(0), (1000,)).min() > 0)
    True
    """
    dtype, wide, bits = resolve(dtype)
    value = draw(key, shape, lambda words: (_exponential(w, bits) for w in words), bits)
    if dtype is wide:
        return value
    return value.to(dtype).clamp(min=torch.finfo(dtype).smallest_normal)


def gumbel(key: Key, shape: Sequence[int] = (), *, dtype: torch.dtype | None = None) -> Tensor:
    """Independent standard Gumbel numbers, always finite: `argmax(logits + gumbel)` is categorical.

    Args:
        key: int64, shape (*K, 2).
        shape: The shape for one key.
        dtype: Real floating; None is torch's default dtype.

    Returns:
        Shape (*K, *shape).

    Raises:
        ArgumentError: the dtype is not real floating.

    >>> from funcloop.random import key
    >>> bool(gumbel(key(0), (1000,)).isfinite().all())
    True
    """
    dtype, _, bits = resolve(dtype)
    return draw(key, shape, lambda words: (-_exponential(w, bits).log() for w in words), bits).to(
        dtype
    )


def _exponential(word: Tensor, bits: int) -> Tensor:
    return -torch.log1p(-open_unit(word, bits))
