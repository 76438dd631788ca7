"""Batches: every example once an epoch, equal shapes, exact weights, any position."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from funcloop import random
from funcloop._errors import ArgumentError, ShapeError
from funcloop.loop import batches
from tests.laws import assert_deterministic, assert_trees_equal

SIZES = given(st.integers(1, 40), st.integers(1, 17), st.integers(0, 3))


@settings(max_examples=25)
@SIZES
def test_an_epoch_weighs_every_example_once(examples: int, batch_size: int, epoch: int):
    data = batches(random.key(1), torch.arange(examples), batch_size)
    seen: Counter[int] = Counter()
    for x, weight in data.epoch(epoch):
        assert x.shape == weight.shape == (batch_size,)
        for value, share in zip(x.tolist(), weight.tolist(), strict=True):
            seen[value] += share
    assert seen == dict.fromkeys(range(examples), 1.0)


@settings(max_examples=25)
@SIZES
def test_an_epoch_may_be_entered_at_any_batch(examples: int, batch_size: int, epoch: int):
    data = batches(random.key(2), {"x": torch.arange(examples)}, batch_size)
    whole = list(data.epoch(epoch))
    assert len(whole) == len(data)
    for start in range(len(data) + 1):
        assert_trees_equal(list(data.epoch(epoch, start)), whole[start:])


def test_epochs_and_keys_have_orders_of_their_own():
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        return tuple(next(batches(random.key(seed), torch.arange(64), 64).epoch(epoch))[0].tolist())

    assert len({order(s, e) for s in range(3) for e in range(3)}) == 9
    assert order(0, 0) != tuple(range(64))


def test_without_a_key_the_order_is_that_of_the_arrays():
    data = batches(None, torch.arange(7), 3)
    assert [x.tolist() for x, _ in data.epoch(5)] == [[0, 1, 2], [3, 4, 5], [6, 0, 1]]
    assert [w.tolist() for _, w in data] == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]


def test_the_global_generator_has_no_say():
    assert_deterministic(lambda: list(batches(random.key(0), torch.arange(10), 4)))


def test_where_the_weight_goes():
    x = torch.zeros(2, 3)
    (first,) = batches(None, (x, x), 2)
    assert [part.shape for part in first] == [(2, 3), (2, 3), (2,)]
    (first,) = batches(None, {"x": x}, 2)
    assert list(first) == ["x", "weight"]
    (first,) = batches(None, x, 2)
    assert [part.shape for part in first] == [(2, 3), (2,)]


def test_weights_of_ones_own():
    data = batches(None, torch.arange(3), 2, weight=torch.tensor([1.0, 2.0, 3.0]))
    assert [weight.tolist() for _, weight in data] == [[1, 2], [3, 0]]


def test_numpy_arrays_and_devices(device: torch.device):
    numpy = pytest.importorskip("numpy", reason="numpy comes with torch")
    (first,) = batches(None, numpy.ones((2, 2), dtype=numpy.float32), 2)
    assert first[0].dtype == torch.float32
    data = batches(random.key(0), torch.ones(2, device=device), 2)
    assert {part.device.type for part in next(iter(data))} == {device.type}


@pytest.mark.parametrize(
    ("arrays", "shapes"),
    [
        ((torch.ones(2), torch.ones(3)), r"'0': \(2,\), '1': \(3,\)"),
        ({"x": torch.ones(0, 4)}, r"'x': \(0, 4\)"),
        ({"x": torch.tensor(1.0)}, r"'x': \(\)"),
        ({}, "{}"),
    ],
)
def test_arrays_that_hold_no_examples_are_refused(arrays: object, shapes: str):
    with pytest.raises(ShapeError, match=f"same leading dimension.*{shapes}"):
        batches(None, arrays, 2)


def test_wrong_sizes_are_refused():
    with pytest.raises(ArgumentError, match="batch_size 0"):
        batches(None, torch.ones(2), 0)
    with pytest.raises(ShapeError, match=r"weight of shape \(3,\) for 2 examples"):
        batches(None, torch.ones(2), 1, weight=torch.ones(3))
