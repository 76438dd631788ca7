"""The last and the best checkpoints of a run, in one folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from funcloop._errors import ArgumentError, StructureError
from funcloop._pytree import PyTree
from funcloop.checkpoint._file import opened, write
from funcloop.checkpoint._restore import Device, restore

_NAME = "step-{:09d}.safetensors"


@dataclass(frozen=True)
class Checkpoints:
    """A folder that keeps the last checkpoints of a run, and the best one.

    There is nothing in the folder but one file for each checkpoint, which says itself of which
    step it is and what was measured then; so there is nothing that a kill could bring out of step.

    Args:
        folder: Where the files are; it is made by the first save.
        keep_last: How many of the last checkpoints are kept; older ones are removed after a save.
        keep_best: The name of the metric by which one more is kept, the best, e.g.
            `"val/accuracy"`. The larger is the better; with a minus in front, as in `"-val/loss"`,
            the smaller.

    Raises:
        ArgumentError: `keep_last` is less than one.

    >>> import tempfile, torch
    >>> kept = Checkpoints(tempfile.mkdtemp(), keep_last=1, keep_best="-val/loss")
    >>> for step, loss in [(10, 0.5), (20, 0.25), (30, 0.75)]:
    ...     _ = kept.save({"w": torch.tensor(float(step))}, step, {"val/loss": loss})
    >>> kept.steps(), kept.latest().name, kept.best().name
    ([20, 30], 'step-000000030.safetensors', 'step-000000020.safetensors')
    >>> kept.restore(best=True)
    {'w': tensor(20.)}
    """

    folder: str | PathLike[str]
    keep_last: int = 2
    keep_best: str | None = None

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ArgumentError(
                "at least the last checkpoint is kept", f"keep_last {self.keep_last}", "give 1"
            )

    def save(self, tree: PyTree, step: int, metrics: Mapping[str, float] = {}) -> Path:
        """Write a checkpoint, and remove those that are no longer kept.

        Args:
            tree: Any tree that `save` takes.
            step: Updates made since the beginning of the run; at least that of the latest
                checkpoint, which it replaces if it is the same.
            metrics: What was measured, by name. A checkpoint without metrics is never the best, nor
                is one whose metric is NaN.

        Returns:
            The file.

        Raises:
            ArgumentError: there is a checkpoint of a later step.
            StructureError: there are metrics, and `keep_best` is not among them.
            CheckpointError, OSError: see `save`.
        """
        name = (self.keep_best or "").removeprefix("-")
        if metrics and name and name not in metrics:
            raise StructureError(
                "the best checkpoint is chosen by a metric that is measured",
                f"keep_best {self.keep_best!r}, measured are {sorted(metrics)}",
                "name one of them, or give none",
            )
        steps = self.steps()
        if steps and step < steps[-1]:
            raise ArgumentError(
                "the checkpoints of a folder are of one run, in order",
                f"step {step} after step {steps[-1]} in {Path(self.folder)}",
                "take another folder, or remove the later ones with clear(after=step)",
            )
        path = self._path(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        measured = {name: repr(float(value)) for name, value in metrics.items()}
        write(path, tree, {"metrics": measured})
        best = self.best() if self.keep_best else None
        for old in self.steps()[: -self.keep_last]:
            if self._path(old) != best:
                self._path(old).unlink(missing_ok=True)
        return path

    def steps(self) -> list[int]:
        """The steps of all checkpoints in the folder, in order."""
        names = [path.name for path in Path(self.folder).glob("step-*.safetensors")]
        numbers = [name[len("step-") : -len(".safetensors")] for name in names]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def latest(self) -> Path | None:
        """The file of the last step, or None."""
        steps = self.steps()
        return self._path(steps[-1]) if steps else None

    def best(self) -> Path | None:
        """The file of the best step, or None where nothing was measured; the earliest of equals.

        Raises:
            ArgumentError: there is no `keep_best`.
        """
        if self.keep_best is None:
            raise ArgumentError(
                "the best is the best by a metric", "keep_best is None", "name the metric"
            )
        scores = {step: self._score(step) for step in self.steps()}
        known = {step: score for step, score in scores.items() if not math.isnan(score)}
        return self._path(max(known, key=known.__getitem__)) if known else None

    def restore(
        self,
        like: PyTree = None,
        *,
        best: bool = False,
        at: str = "",
        map_location: Device | None = None,
    ) -> PyTree:
        """The tree of the latest checkpoint, or of the best; see `restore`.

        Raises:
            ArgumentError: there is none.
            StructureError, CheckpointError: see `restore`.
        """
        path = self.best() if best else self.latest()
        if path is None:
            raise ArgumentError(
                "a checkpoint is restored after it was saved",
                f"none in {Path(self.folder)}",
                "look at latest() or best() first, which are None then",
            )
        return restore(path, like, at=at, map_location=map_location)

    def clear(self, after: int = -1) -> None:
        """Remove the checkpoints of all steps later than `after`; all by default."""
        for step in self.steps():
            if step > after:
                self._path(step).unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return Path(self.folder, _NAME.format(step))

    def _score(self, step: int) -> float:
        name = (self.keep_best or "").removeprefix("-")
        with opened(self._path(step)) as file:
            value = float(file.contents.notes["metrics"].get(name, "nan"))
        return -value if (self.keep_best or "").startswith("-") else value
