"""Random words, the ground of every sampler."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from funcloop._types import Key
from funcloop.random._stream import draw


def bits(key: Key, shape: Sequence[int] = ()) -> Tensor:
    """Independent uniform 32-bit words.

    Element `i`, in row-major order, depends on the key and on `i` alone.

    Args:
        key: int64, shape (*K, 2).
        shape: The shape for one key.

    Returns:
        int64 in [0, 2**32), shape (*K, *shape).

    >>> from funcloop.random import key
    >>> bits(key(0), (3,))
    tensor([1713891541, 4175744164,   83534633])
    """
    return draw(key, shape, lambda words: words)
