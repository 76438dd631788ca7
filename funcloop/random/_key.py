"""Keys: where every random number comes from, made from a seed and divided without end."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Key
from funcloop.random._philox import MASK
from funcloop.random._stream import FOLD, SPLIT, block, counting, require_key


def key(seed: int | Tensor) -> Key:
    """The key of a seed.

    Args:
        seed: An int of at most 64 bits, signed or not; or an integer tensor of shape (*K), which
            gives a batch of keys on its device.

    Returns:
        int64 of shape (*K, 2): the upper and the lower 32 bits of the seed.

    Raises:
        ArgumentError: the seed has more than 64 bits or is not an integer.

    >>> key(7)
    tensor([0, 7])
    >>> key(torch.tensor([1, -1]))
    tensor([[         0,          1],
            [4294967295, 4294967295]])
    """
    if isinstance(seed, int):
        if not -(1 << 63) <= seed < 1 << 64:
            raise ArgumentError("a seed has at most 64 bits", str(seed), "take it modulo 2**64")
        return torch.tensor([(seed >> 32) & MASK, seed & MASK])
    words = _integers(seed, "a seed")
    return torch.stack([(words >> 32) & MASK, words & MASK], -1)


def split(key: Key, n: int = 2) -> Key:
    """`n` keys whose streams have nothing to do with each other's, nor with the key's own.

    Use a key once: to sample, or to split. Key `i` does not depend on `n`.

    Args:
        key: int64, shape (*K, 2).
        n: How many.

    Returns:
        int64, shape (*K, n, 2).

    Raises:
        ArgumentError: `n` is negative.
        ShapeError: not a key.

    >>> from funcloop.random import key
    >>> data, noise = split(key(0))
    >>> split(key(0), 5).shape
    torch.Size([5, 2])
    """
    require_key(key)
    if n < 0:
        raise ArgumentError("a key is split into n >= 0 keys", f"n={n}", "give a count")
    words = block(key, counting(n, key.device), 0, SPLIT)
    return torch.stack(words[:2], -1)


def fold_in(key: Key, data: int | Tensor) -> Key:
    """The key of a key and a number: an epoch, a step, a layer, a member.

    Args:
        key: int64, shape (*K, 2).
        data: An int of at most 64 bits, or an integer tensor of shape (*D).

    Returns:
        int64, shape (*K, *D, 2).

    Raises:
        ArgumentError: `data` has more than 64 bits or is not an integer.
        ShapeError: not a key.

    >>> from funcloop.random import key
    >>> fold_in(key(0), 3).shape, fold_in(key(0), torch.arange(4)).shape
    (torch.Size([2]), torch.Size([4, 2]))
    """
    require_key(key)
    if isinstance(data, int):
        if not -(1 << 63) <= data < 1 << 64:
            raise ArgumentError("what is folded in has at most 64 bits", str(data), "hash it first")
        data = data - (1 << 64) if data >= 1 << 63 else data
        data = torch.full((), data, dtype=torch.int64, device=key.device)
    number = _integers(data, "what is folded in").to(key.device)
    words = block(key, number, 0, FOLD, wide=True)
    return torch.stack(torch.broadcast_tensors(*words[:2]), -1)


def _integers(value: Tensor, what: str) -> Tensor:
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
        found = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else repr(value)
        raise ArgumentError(f"{what} is an integer", found, "give an int or an integer tensor")
    return value.to(torch.int64)
