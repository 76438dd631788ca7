"""Histograms: every number is counted once, and what is not finite is said."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from funcloop import optim, random
from funcloop.estimators import value_and_grad
from funcloop.loop import watch_gradients
from funcloop.loop._histograms import BINS, histograms
from funcloop.step import TrainState
from tests.cases import generator
from tests.laws import assert_trees_equal, snapshot

FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=32)


def one(leaf: torch.Tensor) -> dict:
    return histograms({"a": {"x": leaf}})["a"]["x"]


@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_every_number_is_counted_once(values: list[float]):
    found = one(torch.tensor(values))
    finite = [v for v in values if math.isfinite(v)]
    assert found["nonfinite"] == len(values) - len(finite)
    if finite:
        assert sum(found["counts"]) == len(finite)
        assert len(found["counts"]) == BINS
        assert found["low"] < found["high"]
        assert found["min"] == min(finite)
        assert found["zeros"] == finite.count(0) / len(values)
    json.dumps(found, allow_nan=False)


def test_counts_are_numpys(device: torch.device):
    values = torch.randn(10_000, generator=generator())
    found = one(values.to(device))
    numbers = values.numpy().astype(np.float64)
    assert found["mean"] == pytest.approx(numbers.mean(), abs=1e-6)
    assert found["std"] == pytest.approx(numbers.std(), rel=1e-6)
    inside = np.clip(numbers, found["low"], found["high"])
    want, _ = np.histogram(inside, BINS, (found["low"], found["high"]))
    assert np.abs(want - found["counts"]).sum() <= 8  # a value on an edge, in float32


def test_leaves_that_have_no_numbers_are_left_out():
    tree = {"w": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(1), "empty": torch.ones(0)}
    sharded = torch.ones(2).as_subclass(type("Sharded", (torch.Tensor,), {}))
    rest = {"none": None, "name": "x", "sharded": sharded}
    assert list(histograms({"a": {**tree, **rest}})["a"]) == ["w"]
    assert one(torch.tensor([1 + 1j]))["mean"] == 1


def test_watch_gradients_changes_nothing_and_keeps_its_batch():
    grad_fn = value_and_grad(
        lambda params, buffers, x, key: params["w"] * random.uniform(key, x.shape)
    )
    state = TrainState.create({"w": torch.tensor(2.0)}, {}, optim.sgd(0.1), key=random.key(0))
    before = snapshot(state)
    watch = watch_gradients(grad_fn, torch.ones(3))
    assert_trees_equal(watch(state), watch(state))
    assert_trees_equal(state, before)
