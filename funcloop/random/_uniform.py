"""Uniform floating numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Key
from funcloop.random._broadcast import against
from funcloop.random._floating import half_open, resolve
from funcloop.random._stream import draw


def uniform(
    key: Key,
    shape: Sequence[int] = (),
    *,
    minval: float | Tensor = 0.0,
    maxval: float | Tensor = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Independent uniform numbers of [minval, maxval).

    24 random bits for float32, 53 for float64. bfloat16 and float16 round the float32 number. Where
    rounding would give `maxval` the result is `minval`, so that on a grid of the dtype every number
    has the same share.

    Args:
        key: int64, shape (*K, 2).
        shape: The shape for one key.
        minval: Lower end, included; a tensor broadcasts against `shape`.
        maxval: Upper end, excluded; a tensor broadcasts against `shape`.
        dtype: Real floating; None is torch's default dtype.

    Returns:
        Shape (*K, *shape).

    Raises:
        ArgumentError: `minval > maxval` as Python numbers, or the dtype is not real floating.

    >>> from funcloop.random import key
    >>> uniform(key(0), (2, 3)).shape
    torch.Size([2, 3])
    """
    dtype, wide, bits = resolve(dtype)
    numbers = not isinstance(minval, Tensor) and not isinstance(maxval, Tensor)
    if numbers and minval > maxval:
        raise ArgumentError(
            "uniform needs minval <= maxval", f"[{minval}, {maxval})", "exchange the two"
        )
    unit = draw(key, shape, lambda words: (half_open(w, bits) for w in words), bits)
    if numbers and (minval, maxval) == (0, 1) and dtype is wide:
        return unit
    low, high = (against(shape, end, wide, key.device) for end in (minval, maxval))
    value = (low + unit * (high - low)).to(dtype)
    low, high = low.to(dtype), high.to(dtype)
    return torch.where(value < high, value, low)
