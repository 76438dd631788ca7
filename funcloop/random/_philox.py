"""Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw (SC 2011)."""

from __future__ import annotations

from typing import Any, TypeAlias

#: An int64 tensor of 32-bit words, or one such word as a Python int.
Word: TypeAlias = Any
Block: TypeAlias = tuple[Word, Word, Word, Word]

ROUNDS = 10
MASK = 0xFFFFFFFF
#: The multipliers less 2**32: see `_multiply`.
MULTIPLIERS = (0xD2511F53 - (1 << 32), 0xCD9E8D57 - (1 << 32))
#: The golden ratio and the square root of three less one: what the key grows by each round.
WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: Block, key: tuple[Word, Word]) -> Block:
    """Four random words from a counter of four words and a key of two.

    Words broadcast against each other, and Python ints are as good as tensors: constant words of a
    counter cost no operators.

    >>> [f"{word:08x}" for word in philox4x32((0, 0, 0, 0), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(ROUNDS):
        if number:
            k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def _multiply(word: Word, multiplier: int) -> tuple[Word, Word]:
    """The high and the low word of `word * (multiplier + 2**32)`.

    The full product of two words overflows int64. Less 2**32 the multiplier is negative and of
    31 bits, so this product fits, and what it lacks is `word` itself, in the high word.
    """
    product = word * multiplier
    return (product >> 32) + word, product & MASK
