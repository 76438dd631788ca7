"""prefetch: the same batches, errors in their place, positions that count what was given out."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from funcloop import random
from funcloop._errors import ArgumentError
from funcloop.checkpoint import Checkpoints
from funcloop.loop import KeyedSampler, batches, fit, prefetch
from tests.laws import assert_trees_equal

DATA = batches(random.key(0), (torch.arange(23.0), torch.arange(23)), 4)


def count(state, batch):
    return state * 1.5 + batch[0].sum(), {"loss": batch[0].mean()}


def threads() -> int:
    return threading.active_count()


@pytest.mark.parametrize("ahead", [1, 2, 50])
def test_the_same_batches(ahead: int, device: torch.device):
    data = prefetch(DATA, device, ahead=ahead)
    want = [tuple(x.to(device) for x in batch) for batch in DATA]
    assert_trees_equal(list(data), want)
    assert_trees_equal(list(data), want)  # once more
    assert_trees_equal(
        list(data.epoch(3, 2)), [tuple(x.to(device) for x in b) for b in DATA.epoch(3, 2)]
    )
    assert len(data) == len(DATA)
    assert list(prefetch([], device)) == []


def test_batches_wait_before_they_are_asked_for():
    made: list[int] = []

    def slow() -> Iterator[torch.Tensor]:
        for i in range(10):
            made.append(i)
            yield torch.tensor(i)

    rest = iter(prefetch(slow(), "cpu", ahead=2))
    next(rest)
    deadline = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(made) == 4  # one given out, two that wait, one in the thread's hand
    assert [int(x) for x in rest] == list(range(1, 10))


@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_error_comes_where_the_batch_would_have(at: int):
    def broken() -> Iterator[torch.Tensor]:
        for i in range(at):
            yield torch.tensor(i)
        raise OSError("the disk has gone")

    seen: list[int] = []
    before = threads()
    with pytest.raises(OSError, match="the disk has gone") as caught:
        seen.extend(int(x) for x in prefetch(broken(), "cpu"))
    assert seen == list(range(at))
    assert caught.traceback[-1].name == "broken"  # where it happened
    assert threads() == before


def test_leaving_early_ends_the_thread():
    before = threads()
    rest = iter(prefetch(iter(range(10**9)), "cpu"))
    assert next(rest) == 0
    assert threads() == before + 1
    del rest
    assert threads() == before


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_run_may_be_cut_anywhere(cut: int):
    zero = torch.tensor(0.0)
    whole = fit(zero, count, DATA, steps=13, progress=False)
    first = fit(zero, count, prefetch(DATA, "cpu"), steps=cut, progress=False)
    options = {"steps": 13, "position": first.position, "progress": False}
    rest = fit(first.state, count, prefetch(DATA, "cpu"), **options)  # type: ignore[arg-type]
    assert torch.equal(rest.state, whole.state)
    assert rest.position == whole.position


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffling_data_loader_draws_the_same_seed(workers: int):
    loader = DataLoader(torch.arange(20), batch_size=3, shuffle=True, num_workers=workers)  # type: ignore[arg-type]
    orders = []
    for data in (loader, prefetch(loader, "cpu")):
        torch.manual_seed(7)
        orders.append([x.tolist() for _ in range(2) for x in data])
        orders[-1].append(float(torch.rand(())))
    assert orders[0] == orders[1]


def test_a_loader_with_a_keyed_sampler_goes_on_in_the_middle():
    loader = DataLoader(TensorDataset(*DATA.arrays), 4, sampler=KeyedSampler(random.key(0), 23))
    zero = torch.tensor(0.0)
    whole = fit(zero, count, loader, steps=15, progress=False)
    first = fit(zero, count, prefetch(loader, "cpu"), steps=9, progress=False)
    options = {"steps": 15, "position": first.position, "progress": False}
    rest = fit(first.state, count, prefetch(loader, "cpu"), **options)  # type: ignore[arg-type]
    assert torch.equal(rest.state, whole.state)


def test_an_order_that_is_gone_is_refused_through_it(tmp_path: Path):
    loader = DataLoader(TensorDataset(*DATA.arrays), 4, shuffle=True)
    with pytest.raises(ArgumentError, match="KeyedSampler"):
        fit(
            torch.tensor(0.0),
            count,
            prefetch(loader, "cpu"),
            steps=1,
            checkpoints=Checkpoints(tmp_path),
            progress=False,
        )
    assert copy.copy(prefetch(loader, "cpu")).batch_sampler is loader.batch_sampler


def test_what_is_no_tensor_stays():
    (batch,) = prefetch([{"name": "a", "x": torch.ones(1)}], "cpu")
    assert batch == {"name": "a", "x": torch.ones(1)}


def test_nothing_ahead_is_refused():
    with pytest.raises(ArgumentError, match="ahead=0"):
        prefetch([], "cpu", ahead=0)
