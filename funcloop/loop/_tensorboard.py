"""Records as TensorBoard scalars, where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from funcloop._errors import import_extra
from funcloop.loop._record import Record


def is_installed() -> bool:
    """Whether there is a TensorBoard to write for."""
    return importlib.util.find_spec("tensorboard") is not None


class TensorBoard:
    """A sink that writes event files; the import is delayed until there is something to write.

    Args:
        folder: Where they go; `tensorboard --logdir` takes it or a folder above.
        step: The step that the run starts from; what an earlier run wrote beyond it is hidden.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        self._folder = folder
        self._step = step
        self._writer = None

    def write(self, record: Record) -> None:
        """Every value but the step, under its name."""
        if self._writer is None:
            board = import_extra("torch.utils.tensorboard", "loop")
            self._writer = board.SummaryWriter(str(self._folder), purge_step=self._step + 1)
            self._summary = import_extra("tensorboard.compat.proto.summary_pb2", "loop").Summary
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in record.items()
            if name != "step"
        ]
        # One event for all: `add_scalar` takes one for each, and a step soon waits in its queue.
        self._writer.file_writer.add_summary(self._summary(value=values), int(record["step"]))

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
