"""Normal numbers by the polar-free form of Box and Muller (1958): two words, two numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from funcloop._types import Key
from funcloop.random._floating import half_open, open_unit, resolve
from funcloop.random._stream import draw


def normal(key: Key, shape: Sequence[int] = (), *, dtype: torch.dtype | None = None) -> Tensor:
    """Independent standard normal numbers, always finite.

    Computed in float32 (float64 for float64), largest magnitude 6.8 (8.6). Between devices and
    between eager and compiled, numbers agree to the rounding of `log`, `cos` and `sin`.

    Args:
        key: int64, shape (*K, 2).
        shape: The shape for one key.
        dtype: Real floating; None is torch's default dtype.

    Returns:
        Shape (*K, *shape).

    Raises:
        ArgumentError: the dtype is not real floating.

    >>> from funcloop.random import key
    >>> weights = 0.02 * normal(key(0), (256, 64))
    >>> bool(weights.std() > 0.019)
    True
    """
    dtype, _, bits = resolve(dtype)

    def convert(words: Iterator[Tensor]) -> Iterator[Tensor]:
        for first, second in zip(words, words, strict=True):
            radius = (-2 * open_unit(first, bits).log()).sqrt()
            angle = 2 * math.pi * half_open(second, bits)
            yield radius * angle.cos()
            yield radius * angle.sin()

    return draw(key, shape, convert, bits).to(dtype)
