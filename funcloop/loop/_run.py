"""A run of `fit`: its state and position, and what happens in and after an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from funcloop._errors import ArgumentError
from funcloop._types import Batch, Metrics
from funcloop.loop._epochs import Epochs, rest_of_epoch
from funcloop.loop._journal import Journal
from funcloop.loop._progress import ProgressBar
from funcloop.loop._record import Position, prefixed
from funcloop.loop._saver import Saver, Start
from funcloop.loop._stopping import Stop

_END = object()


class Limits(NamedTuple):
    """Where a run stops, counted from its beginning; whichever comes first."""

    steps: int | None
    epochs: int | None

    def reached(self, position: Position) -> bool:
        """Whether nothing is left to do."""
        return (self.steps is not None and position.step >= self.steps) or (
            self.epochs is not None and position.epoch >= self.epochs
        )


class Run:
    """The two lines, and everything that watches them.

    Args:
        start: Where it begins.
        step: `(state, batch) -> (state, metrics)`.
        evaluate: From a state to numbers by name, or None.
        limits: Where it stops.
        journal: Takes the metrics.
        saver: Saves.
        bar: Is advanced, or None.
        stop: Says whether a signal has asked for the end.
    """

    def __init__(
        self,
        start: Start,
        step: Callable[[Any, Any], tuple[Any, Metrics]],
        evaluate: Callable[[Any], Mapping[str, float]] | None,
        limits: Limits,
        journal: Journal,
        saver: Saver,
        bar: ProgressBar | None,
        stop: Stop,
    ) -> None:
        self.state, self.position, self._evaluated, _ = start
        self._step, self._evaluate, self._limits = step, evaluate, limits
        self._journal, self._saver, self._bar, self._stop = journal, saver, bar, stop

    def train(self, data: Iterable[Batch] | Epochs) -> None:
        """Go on until a limit is reached or a signal comes."""
        while not (self._limits.reached(self.position) or self._stop.asked):
            rest = self._journal.watched(rest_of_epoch(data, self.position))
            self._take_steps(rest)
            if self._stop.asked and self.position.step != self._limits.steps:
                break
            if next(rest, _END) is _END:  # a run may end with the last batch of an epoch
                _check_not_empty(self.position)
                self.position = self.position.next_epoch()
            self._close_interval()
        if self._stop.asked:
            self._saver.save(self.state, self.position, self._evaluated)

    def _take_steps(self, batches: Iterator[Batch]) -> None:
        for batch in batches:
            self.state, metrics = self._step(self.state, batch)
            self.position = self.position.next_batch()
            self._journal.add(self.position, metrics)
            if self._bar is not None:
                self._bar.advance()
            if self.position.step == self._limits.steps or self._stop.asked:
                break
            self._saver.save_if_due(self.state, self.position, self._evaluated)

    def _close_interval(self) -> None:
        """Record, evaluate and save, at the end of an epoch or of the run."""
        self._journal.flush(self.position)
        values: dict[str, float] = {}
        if self._evaluate is not None and self.position.step > self._evaluated:
            self._evaluated = self.position.step
            values = prefixed("val", self._evaluate(self.state))
            self._journal.write(self.position, values)
        self._saver.save(self.state, self.position, self._evaluated, values)


def _check_not_empty(position: Position) -> None:
    if position.batch == 0:
        raise ArgumentError(
            "data give at least one batch in every epoch",
            f"none came in epoch {position.epoch}",
            "give data that can be iterated again, not a generator that is used up",
        )
