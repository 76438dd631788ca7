"""Metrics of many steps become records, one for each interval, without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from funcloop._errors import ShapeError, StructureError
from funcloop._types import Metrics

#: One line of `metrics.jsonl`: `step`, `epoch`, `time` and the values by name.
Record: TypeAlias = dict[str, float]
#: Metrics of consecutive steps by name, each float64 of shape (steps,).
Columns: TypeAlias = dict[str, np.ndarray]


class Position(NamedTuple):
    """Where a run stands in its data: three numbers, to be kept beside the state.

    Attributes:
        step: Updates made since the beginning of the run.
        epoch: Epochs completed.
        batch: Batches taken from the epoch that is running.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0

    def next_batch(self) -> Position:
        """After one more update."""
        return Position(self.step + 1, self.epoch, self.batch + 1)

    def next_epoch(self) -> Position:
        """At the beginning of the next epoch."""
        return Position(self.step, self.epoch + 1, 0)


class Sink(Protocol):
    """Whatever takes records: a file, a progress bar."""

    def write(self, record: Record) -> None:
        """Take one record."""
        ...

    def close(self) -> None:
        """No more records will come."""
        ...


def fetch(metrics: Sequence[Metrics]) -> Columns:
    """The metrics of several steps by name, float64 of shape (steps,).

    This is where numbers are fetched from the device.

    >>> fetch([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(3.0)}])
    {'loss': array([1., 3.])}

    Raises:
        ShapeError: a metric is not a single number.
        StructureError: the steps do not have the same metrics.
    """
    _require_one_set({tuple(sorted(m)) for m in metrics})
    names = list(metrics[0])
    for step in metrics:
        for name in names:
            _require_number(name, step[name])
    numbers = _numbers([step[name] for name in names for step in metrics])
    columns = np.array(numbers, dtype=np.float64).reshape(len(names), len(metrics))
    return dict(zip(names, columns, strict=True))


def joined(earlier: Columns, later: Columns) -> Columns:
    """The columns of earlier and later steps as one; either may be empty.

    Raises:
        StructureError: they are not of the same metrics.
    """
    if not earlier or not later:
        return {**earlier, **later}
    _require_one_set({tuple(sorted(earlier)), tuple(sorted(later))})
    return {name: np.concatenate([earlier[name], column]) for name, column in later.items()}


def summarize(columns: Columns) -> Record:
    """The metrics of several steps as one: means weighted by each step's `weight`.

    `weight` itself is the sum, and `learning_rate` that of the last step. A step without weight
    does not count.

    >>> low, high = torch.tensor(1.0), torch.tensor(3.0)
    >>> summarize(fetch([{"loss": low, "weight": high}, {"loss": high, "weight": low}]))
    {'loss': 1.5, 'weight': 4.0}
    """
    steps = len(next(iter(columns.values()), ()))
    weight = columns.get("weight", np.ones(steps))
    counts = weight != 0
    counted = weight[counts]
    total = counted.sum() or 1.0
    means = {name: float(column[counts] @ counted / total) for name, column in columns.items()}
    special = {"weight": lambda column: column.sum(), "learning_rate": lambda column: column[-1]}
    return means | {
        name: float(value(columns[name])) for name, value in special.items() if name in columns
    }


def _require_one_set(names: set[tuple[str, ...]]) -> None:
    if len(names) > 1:
        raise StructureError(
            "every step has the same metrics",
            f"{sorted(names)}",
            "return a neutral value where one does not apply",
        )


def _require_number(name: str, value: torch.Tensor | float) -> None:
    shape = tuple(getattr(value, "shape", ()))
    if shape:
        raise ShapeError(
            "a step's metrics are single numbers",
            f"{name} of shape {shape}",
            "average it, or write the loop out where a step has many members",
        )


def _numbers(values: Sequence[torch.Tensor | float]) -> list[float]:
    """The values of tensors and numbers, with one transfer for each kind of tensor."""
    numbers: list[Any] = list(values)
    alike: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            alike.setdefault((value.dtype, value.device), []).append(place)
    for places in alike.values():
        fetched = torch.stack([numbers[place] for place in places]).tolist()
        for place, number in zip(places, fetched, strict=True):
            numbers[place] = number
    return numbers


def prefixed(prefix: str, values: Mapping[str, float]) -> Record:
    """The values under `prefix/name`, as floats."""
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}
