"""A whole run as one tree: state, position, metrics that are in no record yet, records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from funcloop._errors import ArgumentError
from funcloop.checkpoint import Checkpoints, restore
from funcloop.loop._epochs import length, require_repeatable
from funcloop.loop._journal import Journal, history
from funcloop.loop._jsonl import read_records
from funcloop.loop._prefetch import Prefetched
from funcloop.loop._record import Position, Record


class Start(NamedTuple):
    """Where a run begins or goes on.

    Attributes:
        state: The state before the next step.
        position: The place in the data.
        evaluated: The step of the last evaluation.
        notes: What the journal saved, or None.
    """

    state: Any
    position: Position
    evaluated: int
    notes: Mapping[str, Any] | None = None


def take_up(checkpoints: Checkpoints | None, fresh: Start, data: object) -> Start:
    """The latest checkpoint, or the fresh start where there is none.

    Raises:
        ArgumentError: there is one, and a position to start from as well; or the data are not
            those that the run was saved with, or cannot be entered again.
        StructureError: the state is another than the saved one.
    """
    if checkpoints is None:
        return fresh
    require_repeatable(data.data if isinstance(data, Prefetched) else data)
    path = checkpoints.latest()
    if path is None:
        return fresh
    if fresh.position != Position():
        raise ArgumentError(
            "a run starts from position= or from its checkpoints",
            f"{fresh.position} was given, and {path} is there",
            "take an empty folder to go on from elsewhere",
        )
    run = restore(path, at="run")
    position = Position(**run["position"])
    batches = length(data)
    if position.batch > 0 and None not in (batches, run["batches"]) and batches != run["batches"]:
        raise ArgumentError(
            "an epoch is finished with the data that it was begun with",
            f"{batches} batches an epoch, and it was {run['batches']} when {path} was saved",
            "give the same data and batch size until the epoch ends",
        )
    state = restore(path, fresh.state, at="state")
    return Start(state, position, run["evaluated"], run["journal"])


def kept_records(path: Path, start: Start) -> list[Record]:
    """The records that a `metrics.jsonl` goes on with."""
    if start.notes is not None:
        return history(start.notes)
    records = read_records(path) if start.position.step and path.exists() else []
    return [record for record in records if record["step"] <= start.position.step]


class Saver:
    """Saves a run into checkpoints; without any it does nothing.

    Args:
        checkpoints: Where to, or None.
        every: Steps between two saves within an epoch, or None for none.
        journal: Has the records and the metrics that are in none yet.
        data: The data, for their length.
    """

    def __init__(
        self, checkpoints: Checkpoints | None, every: int | None, journal: Journal, data: object
    ) -> None:
        self._checkpoints = checkpoints
        self._every = every
        self._journal = journal
        self._batches = length(data)
        self._saved: Position | None = None

    def save_if_due(self, state: Any, position: Position, evaluated: int) -> None:
        """Save at every `every`-th step."""
        if self._every is not None and position.step % self._every == 0:
            self.save(state, position, evaluated)

    def save(
        self, state: Any, position: Position, evaluated: int, metrics: Mapping[str, float] = {}
    ) -> None:
        """Save now, unless it is done already."""
        if self._checkpoints is None or self._saved == position:
            return
        run = {
            "position": position,
            "evaluated": evaluated,
            "batches": self._batches,
            "journal": self._journal.notes(),
        }
        self._checkpoints.save({"state": state, "run": run}, position.step, metrics)
        self._saved = position
