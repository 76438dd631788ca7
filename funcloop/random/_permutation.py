"""Uniform permutations: the order of independent random numbers."""

from __future__ import annotations

from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Key
from funcloop.random._stream import draw, require_one_key


def permutation(key: Key, x: int | Tensor, *, dim: int = 0) -> Tensor:
    """The numbers 0 to x - 1 in random order, or the slices of a tensor.

    Numbers of 63 bits are sorted, so that two of `n` coincide with probability n**2 / 2**64; a
    coincidence keeps their order.

    Args:
        key: int64, shape (*K, 2); for a tensor `x`, shape (2,).
        x: A count, or a tensor to shuffle.
        dim: The dimension to shuffle; slices stay whole.

    Returns:
        int64 of shape (*K, n), or the shape and dtype of `x`.

    Raises:
        ArgumentError: the count is negative.
        ShapeError: several keys for one tensor.

    >>> from funcloop.random import key
    >>> permutation(key(0), 5).sort().values
    tensor([0, 1, 2, 3, 4])
    """
    count = x if isinstance(x, int) else x.shape[dim]
    if count < 0:
        raise ArgumentError("a permutation is of n >= 0 things", f"n={count}", "give a count")
    if not isinstance(x, int):
        require_one_key(key, "a permutation of a tensor")
    order = draw(key, (count,), lambda words: words, 63).argsort(dim=-1, stable=True)
    return order if isinstance(x, int) else x.index_select(dim, order)
