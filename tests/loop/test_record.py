"""Records: exact means over intervals, positions as values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from funcloop._errors import ShapeError, StructureError
from funcloop.loop._record import Position, fetch, prefixed, summarize


def metrics(**values: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


@settings(max_examples=25)
@given(st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=5), min_size=1, max_size=6))
def test_steps_of_any_size_give_the_mean_over_all_examples(batches: list[list[float]]):
    steps = [metrics(loss=sum(b) / len(b), weight=len(b)) for b in batches]
    examples = [value for batch in batches for value in batch]
    record = summarize(fetch(steps))
    assert record["loss"] == pytest.approx(sum(examples) / len(examples), abs=1e-12)
    assert record["weight"] == len(examples)


def test_a_step_without_weight_does_not_count():
    steps = [metrics(loss=math.nan, weight=0), metrics(loss=2, weight=3)]
    assert summarize(fetch(steps)) == {"loss": 2.0, "weight": 3.0}
    assert summarize(fetch(steps[:1])) == {"loss": 0.0, "weight": 0.0}


def test_without_weights_steps_count_alike():
    assert summarize(fetch([metrics(loss=1), metrics(loss=2)])) == {"loss": 1.5}


def test_the_learning_rate_is_that_of_the_last_step():
    steps = [metrics(learning_rate=0.1, weight=9), metrics(learning_rate=0.2, weight=1)]
    assert summarize(fetch(steps))["learning_rate"] == 0.2


def test_nan_and_python_numbers_are_kept():
    assert math.isnan(summarize(fetch([metrics(loss=math.nan), metrics(loss=1)]))["loss"])
    assert summarize(fetch([{"loss": 2, "weight": 4}])) == {"loss": 2.0, "weight": 4.0}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_any_dtype(dtype: torch.dtype, device: torch.device):
    value = torch.tensor(3, dtype=dtype, device=device)
    assert summarize(fetch([{"loss": value}, {"loss": value}])) == {"loss": 3.0}


def test_a_vector_is_refused():
    with pytest.raises(ShapeError, match=r"single numbers: loss of shape \(2,\).*average it"):
        summarize(fetch([{"loss": torch.ones(2)}]))


def test_metrics_that_come_and_go_are_refused():
    with pytest.raises(StructureError, match="every step has the same metrics"):
        summarize(fetch([metrics(loss=1), metrics(loss=1, extra=2)]))


def test_position_counts():
    position = Position().next_batch().next_batch().next_epoch().next_batch()
    assert position == Position(step=3, epoch=1, batch=1)


def test_prefixed_makes_floats():
    assert prefixed("val", {"a": torch.tensor(2)}) == {"val/a": 2.0}  # type: ignore[dict-item]
