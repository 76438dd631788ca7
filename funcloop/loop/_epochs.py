"""Data that `fit` takes: iterated once an epoch, or entered at any batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Protocol, cast

from funcloop._types import Batch
from funcloop.loop._record import Position


class Epochs(Protocol):
    """Data whose epochs differ and can be entered anywhere, such as `batches` returns."""

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from batch `start` on."""
        ...


def rest_of_epoch(data: Iterable[Batch] | Epochs, position: Position) -> Iterator[Batch]:
    """The batches of the epoch that is running which the run has not seen."""
    epoch = getattr(data, "epoch", None)
    if callable(epoch):  # samplers have an `epoch` that is a number
        return iter(cast("Epochs", data).epoch(position.epoch, position.batch))
    return itertools.islice(cast("Iterable[Batch]", data), position.batch, None)
