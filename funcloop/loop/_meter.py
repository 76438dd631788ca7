"""How fast a run is, how long it waits for its data, and what memory it has taken."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from funcloop import tree
from funcloop._types import Batch
from funcloop.loop._record import Record

#: What a record says that another run of the same steps would not say again.
MEASURED = ("time", "examples_per_second", "data_wait", "memory_bytes")


class Meter:
    """Measures between two records; it sees the batches on their way into the step."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Measure from now on: what was before is another interval, or no training."""
        self._began = time.perf_counter()
        self._waited = 0.0
        self._examples = 0

    def watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches."""
        while True:
            asked = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._waited += time.perf_counter() - asked
            self._examples += _examples(batch)
            yield batch

    def take(self) -> Record:
        """The interval as part of a record; the next one begins.

        `data_wait` is the share of the time that the step stood still for want of a batch.
        """
        spent = max(time.perf_counter() - self._began, 1e-9)
        rates = {"examples_per_second": self._examples / spent} if self._examples else {}
        taken = {**rates, "data_wait": self._waited / spent, **peak_memory()}
        self.restart()
        return taken


def peak_memory() -> Record:
    """`memory_bytes`: the most that CUDA tensors took so far, or the process where it has none."""
    if torch.cuda.is_initialized():
        return {"memory_bytes": float(torch.cuda.max_memory_allocated())}
    try:
        import resource
    except ImportError:  # Windows
        return {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"memory_bytes": float(peak if sys.platform == "darwin" else 1024 * peak)}


def _examples(batch: Batch) -> int:
    """The leading dimension of the first tensor that has one."""
    for leaf in tree.leaves(batch):
        if isinstance(leaf, Tensor) and leaf.ndim:
            return len(leaf)
    return 0
