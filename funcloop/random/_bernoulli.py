"""Coin flips, exact to 2**-32, the same whatever dtype they end up in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Key
from funcloop.random._broadcast import against
from funcloop.random._stream import draw

_HALF = 1 << 31


def bernoulli(
    key: Key,
    p: float | Tensor = 0.5,
    shape: Sequence[int] | None = None,
    *,
    dtype: torch.dtype = torch.bool,
) -> Tensor:
    """Independent flips that are true with probability `p`.

    `p` is rounded to a multiple of 2**-32; 0 never and 1 always succeeds.

    Args:
        key: int64, shape (*K, 2).
        p: Probability; a tensor broadcasts against `shape`.
        shape: The shape for one key; None is the shape of `p`.
        dtype: What to return.

    Returns:
        Shape (*K, *shape).

    Raises:
        ArgumentError: `p` is a Python number outside [0, 1].

    >>> from funcloop.random import key
    >>> bernoulli(key(0), 0.3, (4,)).dtype
    torch.bool
    """
    if shape is None:
        shape = p.shape if isinstance(p, Tensor) else ()
    require_probability(p)
    # Words are kept as int32, which a word less 2**31 fits: half the memory, and Inductor's C++ for
    # bool lanes is ten times slower.
    words = draw(key, shape, _signed).to(torch.int64)
    return (words < threshold(p, shape, key.device)).to(dtype)


def _signed(words: Iterator[Tensor]) -> Iterator[Tensor]:
    return ((word - _HALF).to(torch.int32) for word in words)


def threshold(p: float | Tensor, shape: Sequence[int], device: torch.device) -> int | Tensor:
    """The signed word below which a flip succeeds."""
    if not isinstance(p, Tensor):
        return round(p * 2**32) - _HALF
    scaled = against(shape, p, torch.float64, device) * 2.0**32
    return scaled.round().to(torch.int64) - _HALF


def require_probability(p: float | Tensor) -> None:
    """Refuse a Python number outside [0, 1]; a tensor's values cannot be looked at.

    Raises:
        ArgumentError: `p` is not a probability.
    """
    if not isinstance(p, Tensor) and not 0 <= p <= 1:
        raise ArgumentError("a probability lies in [0, 1]", f"p={p}", "give a probability")
