"""Metrics of steps and the speed of a run, gathered into records and handed to all sinks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from funcloop._types import Batch, Metrics
from funcloop.loop._jsonl import lines, parse
from funcloop.loop._meter import Meter
from funcloop.loop._record import (
    Columns,
    Position,
    Record,
    Sink,
    fetch,
    joined,
    prefixed,
    summarize,
)


class Journal:
    """Gathers the metrics of steps, and hands each finished record to all sinks.

    Args:
        sinks: Whatever takes records; closed with the journal.
        every: The steps in a record.
        notes: What `notes` gave, for a journal that goes on.
    """

    def __init__(
        self, sinks: Sequence[Sink], every: int, notes: Mapping[str, Any] | None = None
    ) -> None:
        self.history: list[Record] = []
        self._sinks = sinks
        self._every = every
        self._fetched: Columns = {}
        self._pending: list[Metrics] = []
        self._steps = 0
        self._began = time.perf_counter()
        self._meter = Meter()
        if notes is not None:
            self.history = history(notes)
            self._fetched = {name: column.numpy() for name, column in notes["metrics"].items()}
            self._steps = notes["steps"]
            self._began -= notes["time"]

    def watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches, counted, and the wait for them measured."""
        return self._meter.watched(batches)

    def add(self, position: Position, metrics: Metrics) -> None:
        """Take the metrics of one step; nothing is fetched from the device before a record."""
        self._pending.append(metrics)
        self._steps += 1
        if self._steps >= self._every:
            self.flush(position)

    def flush(self, position: Position) -> None:
        """Make a record of the steps that are in none yet."""
        if self._steps:
            columns = self._fetch()
            self._fetched, self._steps = {}, 0
            self.write(position, {**prefixed("train", summarize(columns)), **self._meter.take()})

    def notes(self) -> dict[str, Any]:
        """All that a journal which goes on has to know, as a tree for a checkpoint."""
        history = np.frombuffer(lines(self.history), dtype=np.uint8).copy()
        return {
            "metrics": {name: torch.from_numpy(column) for name, column in self._fetch().items()},
            "steps": self._steps,
            "time": time.perf_counter() - self._began,
            "history": torch.from_numpy(history),
        }

    def _fetch(self) -> Columns:
        """The steps that are in no record yet; each is fetched from the device once."""
        if self._pending:
            pending, self._pending = self._pending, []
            self._fetched = joined(self._fetched, fetch(pending))
        return self._fetched

    def write(self, position: Position, values: Record) -> None:
        """Hand out one record of these values; what follows is measured from then on."""
        spent = round(time.perf_counter() - self._began, 3)
        record = {"step": position.step, "epoch": position.epoch, "time": spent, **values}
        self.history.append(record)
        for sink in self._sinks:
            sink.write(record)
        self._meter.restart()

    def close(self) -> None:
        """Close all sinks."""
        for sink in self._sinks:
            sink.close()


def history(notes: Mapping[str, Any]) -> list[Record]:
    """The records that a journal noted."""
    return parse(notes["history"].numpy().tobytes())
