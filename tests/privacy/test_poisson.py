"""Poisson batches: independent with one probability, one shape, resumable, never cut unseen."""

from __future__ import annotations

import itertools

import pytest
import torch

from funcloop import privacy, random
from funcloop._errors import ArgumentError, ShapeError
from funcloop.compile import jit
from funcloop.loop import fit

KEY = random.key(2)


def test_every_example_with_one_probability_independently():
    batches = privacy.poisson_batches(KEY, 50, 0.1)
    chosen = torch.zeros(2000, 50)
    for row, batch in zip(chosen, batches, strict=False):
        picked = batch.indices[batch.mask > 0]
        assert len(picked.unique()) == len(picked)
        row[picked] = 1
    assert abs(chosen.mean() - 0.1) < 0.005  # 2.4 standard deviations of 1e5 trials are 0.0023
    assert (chosen.mean(0) - 0.1).abs().max() < 0.03
    sizes = chosen.sum(1)
    assert abs(sizes.var() / (50 * 0.1 * 0.9) - 1) < 0.15  # binomial, not a fixed size
    pairs = torch.corrcoef(chosen.T) - torch.eye(50)
    assert pairs.abs().max() < 0.12


def test_one_shape_and_empty_batches():
    batches = privacy.poisson_batches(KEY, 20, 0.02, pad_to=6)
    first = list(itertools.islice(batches, 40))
    assert {b.indices.shape for b in first} == {b.mask.shape for b in first} == {(6,)}
    assert any(b.mask.sum() == 0 for b in first)
    for b in first:
        count = int(b.mask.sum())
        assert torch.equal(b.mask, (torch.arange(6) < count).float())
        assert (b.indices[count:] == 0).all()
    wide = privacy.poisson_batches(KEY, 3, 1.0, pad_to=5).at(0)
    assert wide.indices.tolist() == [0, 1, 2, 0, 0]
    assert wide.mask.tolist() == [1, 1, 1, 0, 0]


def test_resumed_from_its_step():
    whole = list(itertools.islice(privacy.poisson_batches(KEY, 30, 0.3), 6))
    batches = privacy.poisson_batches(KEY, 30, 0.3)
    list(itertools.islice(batches, 4))
    assert batches.step == 4
    resumed = privacy.poisson_batches(KEY, 30, 0.3, step=batches.step)
    for want, got in zip(whole[4:], resumed, strict=False):
        assert torch.equal(want.indices, got.indices)
    assert torch.equal(
        jit(resumed.at, backend="aot_eager")(torch.tensor(5)).indices, whole[5].indices
    )


def test_truncation_is_refused_or_reported():
    refusing = privacy.poisson_batches(KEY, 10, 1.0, pad_to=4)
    with pytest.raises(ShapeError, match="6 more than 4"):
        next(iter(refusing))
    reporting = privacy.poisson_batches(KEY, 10, 1.0, pad_to=4, on_truncation="report")
    batch = next(iter(reporting))
    assert batch.left_out == 6
    assert batch.mask.sum() == 4


def test_the_default_size_has_room():
    batches = privacy.poisson_batches(KEY, 10_000, 0.01)
    assert 150 < batches.pad_to < 250  # mean 100, standard deviation 10
    assert privacy.poisson_batches(KEY, 5, 0.9).pad_to == 5


def test_data_in_the_place_of_indices_as_fit_takes_them():
    data = torch.arange(8.0), torch.arange(8)
    seen = []

    def step(state, batch):
        x, y, mask = batch
        seen.append((x * mask, mask))
        assert torch.equal(x, y.float())
        return state + 1, {"loss": x.mean()}

    batches = privacy.poisson_batches(KEY, 8, 0.5)
    result = fit(0, step, batches.of(data), steps=3, progress=False)
    resumed = fit(0, step, batches.of(data), steps=5, position=result.position, progress=False)
    assert resumed.state == 2
    straight = list(itertools.islice(privacy.poisson_batches(KEY, 8, 0.5), 5))
    for (_, mask), want in zip(seen, straight, strict=True):
        assert torch.equal(mask, want.mask)


def test_refusals():
    for wrong in ({"sampling_probability": 0.0}, {"n": 0}, {"pad_to": 0}, {"on_truncation": "cut"}):
        with pytest.raises(ArgumentError):
            privacy.poisson_batches(KEY, **{"n": 4, "sampling_probability": 0.5, **wrong})
