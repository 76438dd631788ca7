"""Each sampler has its distribution: Kolmogorov and Smirnov, or chi-square, at fixed seeds."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from funcloop import random
from funcloop.random import key, split

N = 40_000
DTYPES = [torch.float32, torch.float64]


def ks(sample: Tensor, cdf) -> float:
    """Distance from the distribution function times sqrt(n); above 2.2 with probability 1e-4."""
    u = cdf(sample.double().sort().values)
    n = len(u)
    steps = torch.arange(n + 1).double() / n
    return max((u - steps[:-1]).max().item(), (steps[1:] - u).max().item()) * n**0.5


def chi_square(counts: Tensor | list[int], expected: Tensor | list[float]) -> float:
    """Normalised (Wilson and Hilferty): above 4 with probability 3e-5."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    degrees = len(counts) - 1
    scale = 2 / (9 * degrees)
    value = ((counts - expected) ** 2 / expected).sum() / degrees
    return (value ** (1 / 3) - (1 - scale)) / scale**0.5


CONTINUOUS = {
    "uniform": (random.uniform, lambda x: x),
    "uniform range": (
        lambda k, shape, dtype: random.uniform(k, shape, minval=-3, maxval=5, dtype=dtype),
        lambda x: (x + 3) / 8,
    ),
    "normal": (random.normal, torch.special.ndtr),
    "exponential": (random.exponential, lambda x: -torch.expm1(-x)),
    "gumbel": (random.gumbel, lambda x: (-(-x).exp()).exp()),
    "cauchy": (random.cauchy, lambda x: x.atan() / math.pi + 0.5),
    "truncated": (
        lambda k, shape, dtype: random.truncated_normal(k, -0.5, 2.0, shape, dtype=dtype),
        lambda x: (torch.special.ndtr(x) - 0.3085375387259869) / 0.6687123293258339,
    ),
    "truncated tail": (
        lambda k, shape, dtype: random.truncated_normal(k, 9.0, 20.0, shape, dtype=dtype),
        lambda x: 1 - torch.erfc(x / 2**0.5) / math.erfc(9 / 2**0.5),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name, dtype, device):
    sample, cdf = CONTINUOUS[name]
    for seed in range(3):
        assert ks(sample(key(seed).to(device), (N,), dtype=dtype).cpu(), cdf) < 2.2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["uniform", "normal", "exponential"])
def test_half_precision(name, dtype, device):
    sample, cdf = CONTINUOUS[name]
    # Ties at the dtype's steps widen the distance by half a step's probability.
    steps = torch.finfo(dtype).eps * N**0.5
    assert ks(sample(key(0).to(device), (N,), dtype=dtype).cpu(), cdf) < 2.2 + steps


def test_the_pair_of_a_normal_block_is_independent():
    """Box and Muller's two numbers: the lanes' products, and the sum of squares."""
    x = random.normal(key(0), (1 << 16,), dtype=torch.float64).reshape(-1, 4, 256)
    for a, b in ((0, 1), (0, 2), (1, 2), (2, 3)):
        assert (x[:, a] * x[:, b]).mean().abs() * 128 < 5
        assert (x[:, a].square() * x[:, b].square()).mean().sub(1).abs() * 128 / 8**0.5 < 5
    radius = x[:, 0].square() + x[:, 1].square()
    assert ks(radius.flatten(), lambda r: -torch.expm1(-r / 2)) < 2.2


def test_normal_moments():
    x = random.normal(key(1), (1 << 18,), dtype=torch.float64)
    n = len(x)
    assert x.mean().abs() * n**0.5 < 4
    assert (x.square().mean() - 1).abs() * (n / 2) ** 0.5 < 4
    assert x.pow(3).mean().abs() * (n / 15) ** 0.5 < 4
    assert (x.pow(4).mean() - 3).abs() * (n / 96) ** 0.5 < 4


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.3, 0.5, 0.999, 1.0])
def test_bernoulli(p):
    for given in (p, torch.tensor(p), torch.tensor(p, dtype=torch.float64)):
        hits = random.bernoulli(key(0), given, (N,)).double().mean()
        assert abs(hits - p) <= 4.5 * (p * (1 - p) / N) ** 0.5


@pytest.mark.parametrize(("low", "high"), [(0, 7), (-5, 100), (2**40, 2**40 + 10)])
def test_randint(low, high):
    drawn = random.randint(key(0), (N,), low, high)
    counts = (drawn - low).bincount(minlength=high - low)
    assert len(counts) == high - low
    assert chi_square(counts, [N / (high - low)] * (high - low)) < 4


def test_permutations_are_equally_likely(device):
    orders = random.permutation(split(key(0).to(device), 24_000), 4)
    counts = Counter(map(tuple, orders.tolist()))
    assert len(counts) == 24
    assert chi_square(list(counts.values()), [1000] * 24) < 4


def test_choice_without_replacement_is_the_successive_sampling():
    weights = torch.tensor([1.0, 2.0, 3.0, 0.0])
    pairs = torch.vmap(lambda k: random.choice(k, 4, (2,), replace=False, p=weights))(
        split(key(0), 20_000)
    )
    counts = Counter(map(tuple, pairs.tolist()))
    want = {
        (i, j): weights[i] / 6 * weights[j] / (6 - weights[i])
        for i in range(3)
        for j in range(3)
        if i != j
    }
    assert set(counts) == set(want)
    assert chi_square([counts[k] for k in want], [20_000 * want[k].item() for k in want]) < 4


@pytest.mark.parametrize("replace", [True, False])
def test_choice_is_uniform(replace):
    picked = torch.vmap(lambda k: random.choice(k, 5, (3,), replace=replace))(split(key(0), 10_000))
    assert chi_square(picked.flatten().bincount(), [6000] * 5) < 4
    distinct = (picked.sort().values.diff() > 0).all()
    assert bool(distinct) is not replace


def test_categorical(device):
    logits = torch.tensor([[0.0, 1.0, -1.0, float("-inf")], [3.0, 0.0, 0.0, 1.0]])
    drawn = random.categorical(key(0).to(device), logits.to(device), (N,)).cpu()
    assert drawn.shape == (N, 2)
    for row, p in zip(drawn.T, logits.softmax(-1), strict=True):
        counts = row.bincount(minlength=4)
        assert (counts[p == 0] == 0).all()
        assert chi_square(counts[p > 0], N * p[p > 0]) < 4


def test_geometric():
    p = 0.3
    drawn = random.geometric(key(0), p, (N,))
    counts = drawn.long().clamp(max=10).bincount(minlength=11)[1:]
    want = [p * (1 - p) ** (i - 1) for i in range(1, 10)] + [(1 - p) ** 9]
    assert chi_square(counts, [N * w for w in want]) < 4
    assert (random.geometric(key(0), 1.0, (100,)) == 1).all()
