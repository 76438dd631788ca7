"""The folder of a run: records as they come, and at the end pictures of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from funcloop._atomic import replaced
from funcloop._errors import import_extra
from funcloop._types import PyTree
from funcloop.loop._environment import describe_run
from funcloop.loop._histograms import histograms
from funcloop.loop._jsonl import JsonLines
from funcloop.loop._plot import plot_curves
from funcloop.loop._record import Record, Sink
from funcloop.loop._report import report
from funcloop.loop._saver import Start, kept_records
from funcloop.loop._tensorboard import TensorBoard, is_installed


class RunFolder:
    """A sink for `metrics.jsonl`, TensorBoard, `run.json`, `curves.png` and `report.html`.

    Args:
        folder: Where they go; made if missing.
        start: Where the run starts; the records up to there are kept.
        config: What the user wants noted.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """

    def __init__(self, folder: Path, start: Start, config: Mapping[str, Any] | None = None) -> None:
        import_extra("matplotlib", "loop")  # missed before the first step, not after the last
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        path, step = folder / "metrics.jsonl", start.position.step
        kept = kept_records(path, start)
        self._drawable = bool(kept)
        self._sinks: list[Sink] = [JsonLines(path, kept)]
        if is_installed():
            self._sinks.append(TensorBoard(folder, step))
        self._write_json("run.json", describe_run(start.state, config, step))
        (folder / "histograms.json").unlink(missing_ok=True)

    def write(self, record: Record) -> None:
        """Hand one record on."""
        self._drawable = True
        for sink in self._sinks:
            sink.write(record)

    def keep_histograms(self, trees: Mapping[str, PyTree]) -> None:
        """Note how the numbers of these trees are distributed, for the report."""
        self._write_json("histograms.json", histograms(trees))

    def close(self) -> None:
        """Close the files and draw the pictures."""
        for sink in self._sinks:
            sink.close()
        if self._drawable:
            plot_curves(self._folder / "metrics.jsonl", self._folder / "curves.png")
            report(self._folder)

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        with replaced(self._folder / name) as temporary:
            temporary.write_text(json.dumps(value, indent=1))
