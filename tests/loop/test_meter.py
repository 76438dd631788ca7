"""The meter: shares of time, examples a second, memory; and who speaks for many processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest
import torch

from funcloop.loop._meter import Meter, peak_memory
from funcloop.loop._rank import is_first


def slow(seconds: float, batches: list) -> Iterator:
    for batch in batches:
        time.sleep(seconds)
        yield batch


def test_the_share_of_time_that_data_took():
    meter = Meter()
    for _ in meter.watched(slow(0.03, [torch.ones(4)] * 3)):
        time.sleep(0.01)
    taken = meter.take()
    assert 0.5 < taken["data_wait"] < 0.95
    assert 12 / 0.4 < taken["examples_per_second"] < 12 / 0.11
    again = meter.take()
    assert again["data_wait"] == 0
    assert "examples_per_second" not in again


def test_what_was_before_a_restart_does_not_count():
    meter = Meter()
    list(meter.watched(slow(0.01, [torch.ones(4)])))
    meter.restart()
    assert meter.take()["data_wait"] == 0


@pytest.mark.parametrize(
    ("batch", "examples"),
    [
        ((torch.ones(3, 2), torch.ones(3)), 3),
        ({"lr": torch.tensor(1.0), "x": [torch.ones(5)]}, 5),
        ("words", 0),
        ((), 0),
    ],
)
def test_examples_are_counted_in_any_batch(batch: object, examples: int):
    meter = Meter()
    assert list(meter.watched(iter([batch]))) == [batch]
    assert meter.take().get("examples_per_second", 0) * 0 == 0
    assert meter._examples == 0
    list(meter.watched(iter([batch])))
    assert meter._examples == examples


def test_an_error_in_the_data_passes_through():
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    seen = []
    with pytest.raises(OSError, match="gone"):
        seen.extend(Meter().watched(broken()))
    assert seen == [1]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no resource module")
def test_memory_is_in_bytes():
    before = peak_memory()["memory_bytes"]
    assert 2**26 < before < 2**40  # this process has torch in it
    held = torch.ones(2**26)
    assert peak_memory()["memory_bytes"] >= before
    assert len(held)


def test_one_process_speaks_for_itself(monkeypatch: pytest.MonkeyPatch):
    assert is_first()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        assert is_first() is (rank == 0)
