"""Ends of ranges, refused arguments, and other edges of the samplers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from funcloop import random
from funcloop._errors import ArgumentError, ShapeError
from funcloop.random import _floating, key, split

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
EXTREMES = {32: torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]),
            53: torch.tensor([0, 1, 2**52, 2**53 - 2, 2**53 - 1])}  # fmt: skip


@pytest.mark.parametrize("bits", [32, 53])
def test_the_unit_interval_at_its_ends(bits):
    half_open = _floating.half_open(EXTREMES[bits], bits)
    assert half_open[0] == 0
    assert half_open[-1] < 1
    open_unit = _floating.open_unit(EXTREMES[bits], bits)
    assert open_unit[0] > 0
    assert open_unit[-1] < 1


def extreme(monkeypatch, sampler):
    """Let the words be the extreme ones."""

    def draw(key, shape, convert, bits=32):
        words = EXTREMES[bits] if bits in EXTREMES else torch.tensor([0, 2**bits - 1])
        first = torch.cat([words, words]).reshape(2, -1)
        return torch.stack(list(convert(iter([words, words.flip(0), first[0], first[0]]))), 0)

    monkeypatch.setattr(f"funcloop.random._{sampler}.draw", draw)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sampler", ["normal", "exponential", "gumbel", "uniform", "cauchy"])
def test_extreme_words_give_finite_numbers(sampler, dtype, monkeypatch):
    extreme(monkeypatch, {"gumbel": "exponential"}.get(sampler, sampler))
    drawn = getattr(random, sampler)(key(0), dtype=dtype)
    if (sampler, dtype) != ("cauchy", torch.float16):
        assert drawn.isfinite().all()
    if sampler == "exponential":
        assert (drawn > 0).all()
    if sampler == "uniform":
        assert (drawn >= 0).all()
        assert (drawn < 1).all()


@given(
    st.floats(-1e3, 1e3, width=16),
    st.floats(-1e3, 1e3, width=16),
    st.sampled_from(DTYPES),
    st.booleans(),
)
@settings(max_examples=40)
def test_uniform_stays_below_its_end(low, high, dtype, tensors):
    low, high = sorted((low, high))
    low, high = torch.tensor(low, dtype=dtype), torch.tensor(high, dtype=dtype)
    ends = (low, high) if tensors else (low.item(), high.item())
    drawn = random.uniform(key(1), (3000,), minval=ends[0], maxval=ends[1], dtype=dtype)
    assert (drawn >= low).all()
    assert (drawn < high).all() or low == high
    if low == high:
        assert (drawn == low).all()


def test_uniform_fills_a_coarse_grid_evenly():
    """bfloat16 has 128 numbers in [1, 2): each has its share, the ends too."""
    drawn = random.uniform(key(0), (1 << 16,), minval=1, maxval=2, dtype=torch.bfloat16)
    counts = ((drawn.double() - 1) * 128).long().bincount(minlength=128)
    assert (counts.double() - 512).abs().max() < 5 * 512**0.5


@pytest.mark.parametrize("low", [-40.0, -9.0, -1.0, 0.0, 3.0, 30.0])
def test_truncated_normal_stays_inside(low):
    for dtype in DTYPES:
        drawn = random.truncated_normal(key(0), low, low + 1, (1000,), dtype=dtype)
        assert drawn.isfinite().all()
        assert (drawn.double() >= low).all()
        assert (drawn.double() <= low + 1).all()
    ends = torch.tensor([low, 1.0]), torch.tensor([low + 1, 2.0])
    assert random.truncated_normal(key(0), *ends, (5, 2)).shape == (5, 2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.float32, torch.bool])
def test_randint_dtypes(dtype):
    drawn = random.randint(key(0), (100,), 0, 2, dtype=dtype)
    assert drawn.dtype is dtype
    assert set(drawn.tolist()) == {0, 1}


@pytest.mark.parametrize(("low", "high"), [(0, 2**63), (-(2**62), 2**62), (-(2**63), 0)])
def test_randint_of_the_widest_ranges(low, high):
    drawn = random.randint(key(0), (2000,), low, high)
    assert drawn.min() >= low
    assert drawn.max() <= high - 1
    assert abs((drawn.double() - low).mean().item() / 2**63 - 0.5) < 0.05


@pytest.mark.parametrize(("low", "high"), [(3, 3), (4, 3), (-(2**63), 1)])
def test_randint_refuses_a_range(low, high):
    with pytest.raises(ArgumentError, match="randint needs a range"):
        random.randint(key(0), (3,), low, high)


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_permutation_has_each_number_once(n, device):
    order = random.permutation(key(0).to(device), n)
    assert sorted(order.tolist()) == list(range(n))
    x = torch.randn(n, 3, device=device, generator=torch.Generator(device).manual_seed(0))
    assert torch.equal(random.permutation(key(0).to(device), x), x[order])
    assert torch.equal(random.permutation(key(0).to(device), x.T, dim=1), x.T[:, order])
    assert torch.equal(random.permutation(key(0).to(device), x.T, dim=-1), x.T[:, order])


REFUSED = {
    "uniform needs minval": lambda k: random.uniform(k, (2,), minval=1.0, maxval=0.0),
    "real floating numbers": lambda k: random.normal(k, (2,), dtype=torch.complex64),
    "a continuous sampler": lambda k: random.uniform(k, (2,), dtype=torch.int64),
    "a probability lies": lambda k: random.bernoulli(k, 1.5),
    "p=-0.1": lambda k: random.dropout(k, torch.ones(3), -0.1),
    "p=nan": lambda k: random.dropout(k, torch.ones(3), float("nan")),
    "geometric needs": lambda k: random.geometric(k, 0.0),
    "n=-1": lambda k: random.permutation(k, -1),
    "4 of 3": lambda k: random.choice(k, 3, (4,), replace=False),
    "1 of 0": lambda k: random.choice(k, 0, (1,)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_arguments(message):
    with pytest.raises(ArgumentError, match=message):
        REFUSED[message](key(0))


def test_refused_shapes():
    with pytest.raises(ShapeError, match=r"\(3,\) against \(2,\)"):
        random.uniform(key(0), (2,), minval=torch.zeros(3))
    with pytest.raises(ShapeError, match=r"\(2, 1\) against \(1,\)"):
        random.bernoulli(key(0), torch.zeros(2, 1), (1,))
    with pytest.raises(ShapeError, match="one weight an element"):
        random.choice(key(0), 3, (2,), p=torch.ones(2))


def test_parameters_broadcast_over_a_batch_of_keys():
    keys, low = split(key(0), 3), torch.tensor([0.0, 10.0])
    drawn = random.uniform(keys, (4, 2), minval=low, maxval=low + 1)
    assert drawn.shape == (3, 4, 2)
    assert torch.equal(drawn >= 10, torch.tensor([False, True]).expand(3, 4, 2))


def test_choice_of_a_tensor():
    x = torch.arange(12).reshape(4, 3)
    picked = random.choice(key(0), x, (2, 5))
    assert picked.shape == (2, 5, 3)
    assert {tuple(row) for row in picked.reshape(-1, 3).tolist()} <= {tuple(r) for r in x.tolist()}
    assert random.choice(key(0), x, (0,)).shape == (0, 3)
    assert random.choice(key(0), 4).shape == ()
