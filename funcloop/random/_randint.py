"""Uniform integers of a range."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Key
from funcloop.random._broadcast import against
from funcloop.random._stream import draw


def randint(
    key: Key,
    shape: Sequence[int],
    minval: int | Tensor,
    maxval: int | Tensor,
    *,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Independent uniform integers of [minval, maxval).

    A number of 63 bits modulo the span: probabilities differ by at most span / 2**63 of their size.

    Args:
        key: int64, shape (*K, 2).
        shape: The shape for one key.
        minval: Lower end, included; a tensor broadcasts against `shape`.
        maxval: Upper end, excluded; a tensor broadcasts against `shape`. A tensor's empty range
            gives `minval`.
        dtype: What to return.

    Returns:
        Shape (*K, *shape).

    Raises:
        ArgumentError: Python ends with an empty range, or one of more than 2**63 numbers.

    >>> from funcloop.random import key
    >>> bool(randint(key(0), (100,), -2, 3).unique().equal(torch.arange(-2, 3)))
    True
    """
    words = draw(key, shape, lambda words: words, 63)
    if not isinstance(minval, Tensor) and not isinstance(maxval, Tensor):
        span = maxval - minval
        if not 0 < span <= 1 << 63:
            raise ArgumentError(
                "randint needs a range of 1 to 2**63 integers",
                f"[{minval}, {maxval})",
                "give minval < maxval",
            )
        below = words if span == 1 << 63 else words % span
        return (below + minval).to(dtype)
    low, high = (against(shape, end, torch.int64, key.device) for end in (minval, maxval))
    return (low + words % (high - low).clamp(min=1)).to(dtype)
