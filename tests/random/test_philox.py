"""Philox4x32-10 against the vectors published with Random123, and against exact integers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from funcloop.random import _philox
from funcloop.random._philox import MASK, philox4x32

VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([MASK] * 4, [MASK] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
words = st.integers(0, MASK)


@pytest.mark.parametrize(("counter", "key", "want"), VECTORS)
def test_known_answers_in_tensors(counter, key, want, device):
    counter, key = (torch.tensor(value, device=device).unbind() for value in (counter, key))
    assert torch.stack(philox4x32(tuple(counter), tuple(key))).tolist() == want


@pytest.mark.parametrize(("counter", "key", "want"), VECTORS)
def test_known_answers_in_python_numbers(counter, key, want):
    assert list(philox4x32(tuple(counter), tuple(key))) == want


def paper(counter: list[int], key: list[int]) -> list[int]:
    """The paper's definition in unbounded integers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (second >> 32) ^ c1 ^ k0, second % 2**32
        c2, c3 = (first >> 32) ^ c3 ^ k1, first % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


@given(st.lists(words, min_size=4, max_size=4), st.lists(words, min_size=2, max_size=2))
def test_equals_the_paper(counter, key):
    got = philox4x32(tuple(torch.tensor(counter)), tuple(torch.tensor(key)))
    assert torch.stack(got).tolist() == paper(counter, key)


@pytest.mark.parametrize("multiplier", _philox.MULTIPLIERS)
@pytest.mark.parametrize("word", [0, 1, 2**16, 2**31 - 1, 2**31, MASK - 1, MASK])
def test_products_do_not_overflow(word, multiplier):
    high, low = _philox._multiply(torch.tensor(word), multiplier)
    assert (high.item() << 32) + low.item() == word * (multiplier + 2**32)


def test_a_counter_and_a_key_broadcast():
    counter = (torch.arange(5), 0, 0, 0)
    key = tuple(torch.arange(6).reshape(2, 3, 1).unbind())
    assert philox4x32(counter, key)[0].shape == (3, 5)
