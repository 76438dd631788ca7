"""Which element takes which word: element i depends on the key and on i alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from funcloop.random import bits, key, split
from funcloop.random._philox import philox4x32
from funcloop.random._stream import LANE, draw

counts = st.integers(0, 5000)


def word(made: torch.Tensor, i: int, stream: int = 0) -> int:
    """Element i by the definition: its group, its lane, its place in the lane."""
    group, lane, place = i // (4 * LANE), i // LANE % 4, i % LANE
    return philox4x32((group * LANE + place, 0, stream, 0), tuple(made.tolist()))[lane]


@pytest.mark.parametrize("n", [1, LANE - 1, LANE, LANE + 1, 4 * LANE, 4 * LANE + 1, 9 * LANE])
def test_the_elements_take_the_words_as_defined(n, device):
    made = key(11)
    drawn = bits(made.to(device), (n,)).tolist()
    assert drawn == [word(made, i) for i in range(n)]
    assert len(set(drawn)) > n - 5  # no word serves twice


@given(counts, counts)
@settings(max_examples=20)
def test_a_longer_draw_begins_with_the_shorter(n, m):
    n, m = sorted((n, m))
    for width in (32, 53, 63):
        long = draw(key(1), (m,), lambda words: words, width)
        assert torch.equal(draw(key(1), (n,), lambda words: words, width), long[:n])


@pytest.mark.parametrize("width", [33, 53, 63])
def test_more_bits_begin_with_the_fewer(width):
    wide = draw(key(4), (2000,), lambda words: words, width)
    assert torch.equal(wide >> (width - 32), bits(key(4), (2000,)))
    assert wide.min() >= 0
    if width < 63:
        assert wide.max() < 1 << width
    assert (wide & 1).float().mean().sub(0.5).abs() < 0.05


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 5), (2, 3, 400)])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,)])
def test_shapes(shape, batch, device):
    keys = split(key(0).to(device), math.prod(batch)).reshape(*batch, 2)
    drawn = bits(keys, shape)
    assert drawn.shape == (*batch, *shape)
    assert drawn.dtype is torch.int64
    assert drawn.device.type == device.type
    if batch == (2, 3):
        assert torch.equal(drawn[1, 2], bits(keys[1, 2], shape))
    assert torch.equal(drawn.flatten(len(batch)) if shape else drawn.unsqueeze(-1),
                       bits(keys, (math.prod(shape),)))  # fmt: skip
