"""Normal numbers of an interval, by the inverse of the distribution function."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop._types import Key
from funcloop.random._broadcast import against
from funcloop.random._floating import open_unit, resolve
from funcloop.random._stream import draw


def truncated_normal(
    key: Key,
    lower: float | Tensor,
    upper: float | Tensor,
    shape: Sequence[int] = (),
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Independent standard normal numbers, given that they lie in [lower, upper].

    Computed in float64 on the side of the lower tail, where the distribution function keeps its
    precision; right as far out as 37 standard deviations.

    Args:
        key: int64, shape (*K, 2).
        lower: Lower end; a tensor broadcasts against `shape`.
        upper: Upper end, above the lower; a tensor broadcasts against `shape`.
        shape: The shape for one key.
        dtype: Real floating; None is torch's default dtype.

    Returns:
        Shape (*K, *shape), in [lower, upper].

    Raises:
        ArgumentError: the dtype is not real floating.

    >>> from funcloop.random import key
    >>> sample = truncated_normal(key(0), 2.0, 3.0, (100,))
    >>> bool(sample.min() >= 2), bool(sample.max() <= 3)
    (True, True)
    """
    dtype, _, bits = resolve(dtype)
    low, high = (against(shape, end, torch.float64, key.device) for end in (lower, upper))
    mirrored = low > 0
    left, right = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    unit = draw(key, shape, lambda words: (open_unit(w, bits) for w in words), bits)
    unit = unit.to(torch.float64)
    unit = torch.where(mirrored, 1 - unit, unit)
    below = _distribution(left)
    value = torch.special.ndtri(below + unit * (_distribution(right) - below)).clamp(left, right)
    return torch.where(mirrored, -value, value).to(dtype)


def _distribution(x: Tensor) -> Tensor:
    # torch.special.ndtr is 1 + erf, which is nothing but rounding below -6.
    return 0.5 * torch.erfc(-x / math.sqrt(2))
