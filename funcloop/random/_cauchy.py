"""Cauchy numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop._types import Key
from funcloop.random._floating import open_unit, resolve
from funcloop.random._stream import draw


def cauchy(key: Key, shape: Sequence[int] = (), *, dtype: torch.dtype | None = None) -> Tensor:
    """Independent standard Cauchy numbers.

    Args:
        key: int64, shape (*K, 2).
        shape: The shape for one key.
        dtype: Real floating; None is torch's default dtype.

    Returns:
        Shape (*K, *shape). float16 may overflow to infinity.

    Raises:
        ArgumentError: the dtype is not real floating.

    >>> from funcloop.random import key
    >>> cauchy(key(0), (3,)).shape
    torch.Size([3])
    """
    dtype, _, bits = resolve(dtype)
    return draw(
        key,
        shape,
        # The cotangent, not tan(pi * (u - 1/2)): u has its finest steps near zero.
        lambda words: (1 / (math.pi * open_unit(w, bits)).tan() for w in words),
        bits,
    ).to(dtype)
