"""Metrics of steps, gathered into records and handed to all sinks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from funcloop._types import Metrics
from funcloop.loop._record import Position, Record, Sink, prefixed, summarize


class Journal:
    """Gathers the metrics of steps, and hands each finished record to all sinks.

    Args:
        sinks: Whatever takes records; closed with the journal.
        every: The steps in a record.
    """

    def __init__(self, sinks: Sequence[Sink], every: int) -> None:
        self.history: list[Record] = []
        self._sinks = sinks
        self._every = every
        self._pending: list[Metrics] = []
        self._began = time.perf_counter()

    def add(self, position: Position, metrics: Metrics) -> None:
        """Take the metrics of one step; nothing is fetched from the device before a record."""
        self._pending.append(metrics)
        if len(self._pending) == self._every:
            self.flush(position)

    def flush(self, position: Position) -> None:
        """Make a record of the steps that are in none yet."""
        if self._pending:
            pending, self._pending = self._pending, []
            self.write(position, prefixed("train", summarize(pending)))

    def write(self, position: Position, values: Record) -> None:
        """Hand out one record of these values."""
        spent = round(time.perf_counter() - self._began, 3)
        record = {"step": position.step, "epoch": position.epoch, "time": spent, **values}
        self.history.append(record)
        for sink in self._sinks:
            sink.write(record)

    def close(self) -> None:
        """Close all sinks."""
        for sink in self._sinks:
            sink.close()
