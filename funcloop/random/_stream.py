"""The words that a key gives: which element takes which word of which Philox block.

The counter's third word numbers the stream, its fourth the purpose, so that sampling, splitting and
folding never meet. Element `i` depends on the key and on `i` alone: a longer draw begins with the
shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from funcloop._errors import ShapeError
from funcloop.random._philox import MASK, Block, philox4x32

SAMPLE, SPLIT, FOLD = range(3)
#: Elements are taken 4 * LANE at a time: LANE first words of LANE blocks, then the second words...
#: A lane is then stored in one piece; word by word, the stores would be scattered.
LANE = 256

#: From the words of the four lanes to their values, elementwise. Both are drawn lazily: where one
#: lane is enough, the others cost nothing.
Convert = Callable[[Iterator[Tensor]], Iterable[Tensor]]


def block(key: Tensor, index: Tensor, stream: int, purpose: int, *, wide: bool = False) -> Block:
    """Four words for each key and index, of shape (*K, *index.shape).

    The index is an int64 of [0, 2**32), or any int64 if `wide`.
    """
    first, second = key.reshape(*key.shape[:-1], *[1] * index.ndim, 2).unbind(-1)
    low, high = (index & MASK, (index >> 32) & MASK) if wide else (index, 0)
    return philox4x32((low, high, stream, purpose), (first, second))


def draw(key: Tensor, shape: Sequence[int], convert: Convert, bits: int = 32) -> Tensor:
    """Values of shape (*K, *shape), one for each word of the key's stream.

    Args:
        key: int64, shape (*K, 2).
        shape: The shape of one key's values.
        convert: Called with the four lanes' words; the words have `bits` bits.
        bits: 32, or up to 63: then the upper 32 are those that a draw of 32 gives.
    """
    require_key(key)
    count = math.prod(shape)
    lanes = 1 if _in_one_lane(count) else 4
    index = _index(count, key.device)  # (count,) or (groups, LANE)
    wide = count >> 34 > 0  # four words a block
    words = iter(block(key, index, 0, SAMPLE, wide=wide))
    if bits > 32:
        rest = block(key, index, 1, SAMPLE, wide=wide)
        words = ((w << (bits - 32)) | (r >> (64 - bits)) for w, r in zip(words, rest, strict=True))
    values = list(islice(convert(words), lanes))
    batch = key.shape[:-1]
    if lanes == 1:
        return values[0].reshape((*batch, *shape))
    flat = torch.stack(values, -2).flatten(-3)  # (*K, groups * 4 * LANE)
    return flat[..., :count].reshape((*batch, *shape))


def counting(n: int, device: torch.device) -> Tensor:
    """0, 1, ..., n - 1 from a table, where `arange` would do.

    Inductor turns arithmetic on an `arange` into arithmetic on loop indices, and multiplies there
    in 32 bits: wrong words, without an error (torch 2.13).
    """
    if n <= LANE:
        return torch.tensor(range(n), dtype=torch.int64, device=device)
    return _rows(-(-n // LANE), device).flatten()[:n]


def _rows(n: int, device: torch.device) -> Tensor:
    """0, 1, ..., n * LANE - 1 in rows of LANE."""
    # Inductor also merges the two loops of an `arange` sum into one, cannot fuse the loop over the
    # four lanes with it, and writes every word to memory twice. A table keeps them apart.
    return torch.arange(n, device=device).unsqueeze(-1) * LANE + counting(LANE, device)


def _in_one_lane(count: int) -> bool:
    """Whether the elements fill no more than the first lane; the words are the same either way.

    Of a symbolic size it is not asked: the answer would tie a graph to it.
    """
    return isinstance(count, int) and count <= LANE


def _index(count: int, device: torch.device) -> Tensor:
    """The number of the block from which each element of a lane is taken."""
    return (
        counting(count, device) if _in_one_lane(count) else _rows(-(-count // (4 * LANE)), device)
    )


def require_key(key: Tensor) -> None:
    """Refuse what is not a key or a batch of keys.

    Raises:
        ShapeError: not an int64 tensor of shape (*K, 2).
    """
    if not isinstance(key, Tensor) or key.dtype is not torch.int64 or key.shape[-1:] != (2,):
        found = f"{key.dtype} of shape {tuple(key.shape)}" if isinstance(key, Tensor) else repr(key)
        raise ShapeError(
            "a key is an int64 tensor of shape (2,), or (*K, 2) for a batch",
            found,
            "make one with funcloop.random.key(seed)",
        )


def require_one_key(key: Tensor, what: str) -> None:
    """Refuse what is not one key.

    Raises:
        ShapeError: not an int64 tensor of shape (2,).
    """
    require_key(key)
    if key.ndim != 1:
        raise ShapeError(
            f"{what} takes one key", f"shape {tuple(key.shape)}", "take a vmap over the keys"
        )
