"""Keys: seeds, splitting, folding, and that none of their streams meet."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from funcloop._errors import ArgumentError, ShapeError
from funcloop.random import bits, fold_in, key, split
from funcloop.random._philox import MASK, philox4x32
from funcloop.random._stream import FOLD, SAMPLE, SPLIT
from tests.laws import assert_jit_equal, assert_pure, assert_vmap_equal

seeds = st.integers(-(2**63), 2**64 - 1)


@given(seeds)
@settings(max_examples=30)
def test_a_seed_is_its_two_words(seed):
    made = key(seed)
    assert made.dtype is torch.int64
    assert made.tolist() == [(seed >> 32) & MASK, seed & MASK]


def test_a_tensor_of_seeds_is_a_batch_of_keys(device):
    numbers = [0, 5, -1, 2**40]
    made = key(torch.tensor(numbers, device=device))
    assert made.device.type == device.type
    assert torch.equal(made.cpu(), torch.stack([key(n) for n in numbers]))


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_of_more_than_64_bits_is_refused(seed):
    with pytest.raises(ArgumentError, match="64 bits"):
        key(seed)
    with pytest.raises(ArgumentError, match="64 bits"):
        fold_in(key(0), seed)


@pytest.mark.parametrize("seed", [1.5, torch.tensor(1.5)])
def test_a_seed_that_is_no_integer_is_refused(seed):
    with pytest.raises(ArgumentError, match="a seed is an integer"):
        key(seed)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(2), torch.zeros(3, dtype=torch.int64), torch.tensor(0), 7, None]
)
@pytest.mark.parametrize("use", [bits, split, lambda k: fold_in(k, 1)])
def test_what_is_no_key_is_refused(wrong, use):
    with pytest.raises(ShapeError, match="a key is an int64 tensor"):
        use(wrong)


def test_a_split_does_not_depend_on_the_count(device):
    parent = key(3).to(device)
    assert torch.equal(split(parent, 3), split(parent, 8)[:3])
    assert split(parent, 0).shape == (0, 2)
    with pytest.raises(ArgumentError, match="n=-1"):
        split(parent, -1)


@given(seeds)
@settings(max_examples=30)
def test_folding_takes_all_64_bits_of_an_int_or_a_tensor(number):
    signed = number - 2**64 if number >= 2**63 else number
    folded = fold_in(key(1), number)
    assert torch.equal(folded, fold_in(key(1), torch.tensor(signed)))
    assert not torch.equal(folded, fold_in(key(1), number ^ (1 << 40)))


def test_batches_are_the_loops(device):
    keys = split(key(0).to(device), 3)
    numbers = torch.tensor([4, -9], device=device)
    assert torch.equal(split(keys, 4), torch.stack([split(k, 4) for k in keys]))
    folded = fold_in(keys, numbers)
    assert folded.shape == (3, 2, 2)
    assert torch.equal(folded[2, 1], fold_in(keys[2], -9))


def test_purposes_are_disjoint():
    # The fourth counter word is the purpose, so no block serves two of them.
    assert len({SAMPLE, SPLIT, FOLD}) == 3
    parent = key(9)
    drawn = bits(parent, (4096,)).tolist()
    for child in (split(parent, 64), fold_in(parent, torch.arange(64))):
        assert not set(child.flatten().tolist()) & set(drawn)
    assert not set(split(parent, 64)[:, 0].tolist()) & set(
        fold_in(parent, torch.arange(64))[:, 0].tolist()
    )


def test_the_mapping_is_fixed():
    """Checkpoints hold keys: what a key gives may never change."""
    first = philox4x32((0, 0, 0, SAMPLE), (0, 0))
    assert bits(key(0)).item() == first[0]
    assert split(key(0))[1].tolist() == list(philox4x32((1, 0, 0, SPLIT), (0, 0))[:2])
    assert fold_in(key(0), -2).tolist() == list(philox4x32((MASK - 1, MASK, 0, FOLD), (0, 0))[:2])


def test_keys_compose():
    parent = key(2)
    assert_pure(split, parent)
    assert_jit_equal(lambda k: (split(k, 3), fold_in(k, 7)), parent)
    assert_jit_equal(fold_in, parent, torch.tensor(5))
    assert_vmap_equal(
        lambda k, n: (split(k, 3), fold_in(k, n)),
        *[(k, torch.tensor(i)) for i, k in enumerate(split(parent, 3))],
        rtol=0,
    )
    assert_jit_equal(key, torch.tensor([3, 4]))
