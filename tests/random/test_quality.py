"""The stream looks random, and the tests that say so fail for a generator that is not.

Every statistic is a z-score or has a known null distribution; seeds are fixed, so that a sound
generator passes always. The thresholds of 5 and 6 standard deviations are what the maximum over the
bits and bytes looked at exceeds with probability below 1e-4.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from funcloop.random import _philox, bits, fold_in, key, split
from funcloop.random._stream import LANE

N = 1 << 14


def bit_planes(words: Tensor) -> Tensor:
    """The 32 bits of each word, shape (n, 32), as doubles."""
    return ((words.flatten().unsqueeze(-1) >> torch.arange(32)) & 1).double()


def balance(words: Tensor) -> float:
    """The largest z-score of the number of ones in any bit position."""
    planes = bit_planes(words)
    return ((planes.mean(0) - 0.5).abs().max() * 2 * len(planes) ** 0.5).item()


def bytes_chi_square(words: Tensor) -> float:
    """The largest normalised chi-square of the four bytes' frequencies (Wilson and Hilferty)."""
    worst = 0.0
    for shift in (0, 8, 16, 24):
        counts = np.bincount(((words.flatten() >> shift) & 255).numpy(), minlength=256)
        expected = counts.sum() / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        scale = 2 / (9 * 255)
        z = ((chi_square / 255) ** (1 / 3) - (1 - scale)) / scale**0.5
        worst = max(worst, abs(z))
    return worst


def correlation(a: Tensor, b: Tensor) -> float:
    """The larger z-score of two: the correlation of the words, and any bit's agreement."""
    x, y = a.flatten().double(), b.flatten().double()
    x, y = x - x.mean(), y - y.mean()
    r = (x * y).sum() / (x.square().sum() * y.square().sum()).sqrt().clamp(min=1e-300)
    return max(r.abs().item() * len(x) ** 0.5, balance(a ^ b))


def ks_uniform(words: Tensor) -> float:
    """Kolmogorov and Smirnov's distance times sqrt(n); above 2.2 with probability 1e-4."""
    u = (words.flatten().sort().values.double() + 0.5) / 2**32
    n = len(u)
    steps = torch.arange(n + 1).double() / n
    return max((u - steps[:-1]).max().item(), (steps[1:] - u).max().item()) * n**0.5


def avalanche(flip: int) -> float:
    """How far from a coin any output bit is, when one bit of the key flips in many keys."""
    keys = key(torch.arange(2048) * 77)
    flipped = keys ^ torch.tensor([(1 << flip) >> 32, (1 << flip) & 0xFFFFFFFF])
    return balance(bits(keys, (2,)) ^ bits(flipped, (2,)))


def statistics() -> dict[str, float]:
    """Every statistic, over its threshold."""
    one, parent = bits(key(0), (N,)), key(7)
    left, right = split(parent)
    folded = fold_in(parent, torch.arange(2))
    found = {
        "ones": balance(one) / 5,
        "bytes": bytes_chi_square(one) / 5,
        "ks": ks_uniform(one) / 2.2,
        "bytes over keys": bytes_chi_square(bits(key(torch.arange(N)))) / 5,
        "bytes over split": bytes_chi_square(split(parent, N)) / 5,
        "bytes over folds": bytes_chi_square(fold_in(parent, torch.arange(N))) / 5,
        "adjacent keys": correlation(one, bits(key(1), (N,))) / 6,
        "split": correlation(bits(left, (N,)), bits(right, (N,))) / 6,
        "parent and child": correlation(bits(parent, (N,)), bits(left, (N,))) / 6,
        "folded": correlation(bits(folded[0], (N,)), bits(folded[1], (N,))) / 6,
        "split and folded": correlation(bits(left, (N,)), bits(folded[0], (N,))) / 6,
    }
    for lag in (1, 2, LANE, 4 * LANE):
        found[f"lag {lag}"] = correlation(one[:-lag], one[lag:]) / 6
    for flip in (0, 13, 31, 32, 50, 63):
        found[f"avalanche {flip}"] = avalanche(flip) / 6
    return found


def test_the_stream_looks_random():
    found = statistics()
    assert {name: value for name, value in found.items() if value >= 1} == {}


@pytest.mark.parametrize("seed", range(5))
def test_every_seed_looks_random(seed):
    words = bits(key(2**seed * 1000003), (N,))
    assert balance(words) < 5
    assert bytes_chi_square(words) < 5
    assert ks_uniform(words) < 2.2


def plain_counter(counter, key):
    return counter


def without_key(counter, key):
    return _philox.philox4x32(counter, (0, 0))


def without_second_key_word(counter, key):
    return _philox.philox4x32(counter, (key[0], 0))


def weak_multiply(word, multiplier):
    return word * 3 >> 32, word * 3 & _philox.MASK


def no_high_word(word, multiplier):
    return word, word * multiplier & _philox.MASK


def install(monkeypatch, philox):
    """Let the streams come from `philox`; what it ignores still gives its words their shape."""

    def spread(counter, key):
        shape = sum(counter[:2]) * 0 + key[0] * 0
        return tuple(word + shape for word in philox(counter, key))

    monkeypatch.setattr("funcloop.random._stream.philox4x32", spread)


def test_the_sound_generator_installed_as_the_broken_ones_passes(monkeypatch):
    install(monkeypatch, _philox.philox4x32)
    assert max(statistics().values()) < 1


@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 4])
def test_fewer_rounds_are_noticed(rounds, monkeypatch):
    monkeypatch.setattr(_philox, "ROUNDS", rounds)
    install(monkeypatch, _philox.philox4x32)
    assert max(statistics().values()) > 2


@pytest.mark.parametrize("multiply", [weak_multiply, no_high_word])
def test_a_weak_multiplication_is_noticed(multiply, monkeypatch):
    monkeypatch.setattr(_philox, "_multiply", multiply)
    install(monkeypatch, _philox.philox4x32)
    assert max(statistics().values()) > 2


@pytest.mark.parametrize("broken", [plain_counter, without_key, without_second_key_word])
def test_a_dropped_part_is_noticed(broken, monkeypatch):
    install(monkeypatch, broken)
    assert max(statistics().values()) > 2


@pytest.mark.parametrize("dropped", [0, 1, 2, 3])
def test_a_dropped_xor_is_noticed(dropped, monkeypatch):
    """One of the four xors of a round is left out."""

    def philox(counter, key):
        c, k = counter, key
        for number in range(_philox.ROUNDS):
            if number:
                k = tuple((w + g) & _philox.MASK for w, g in zip(k, _philox.WEYL, strict=True))
            high0, low0 = _philox._multiply(c[0], _philox.MULTIPLIERS[0])
            high1, low1 = _philox._multiply(c[2], _philox.MULTIPLIERS[1])
            terms = [c[1], k[0], c[3], k[1]]
            terms[dropped] = 0
            c = (high1 ^ terms[0] ^ terms[1], low1, high0 ^ terms[2] ^ terms[3], low0)
        return c

    install(monkeypatch, philox)
    assert max(statistics().values()) > 1.5
