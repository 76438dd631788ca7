"""Data that `fit` takes: iterated once an epoch, or entered at any batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Protocol, cast

from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from funcloop._errors import ArgumentError
from funcloop._types import Batch
from funcloop.loop._keyed_sampler import KeyedSampler
from funcloop.loop._record import Position

_BY_CHANCE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class Epochs(Protocol):
    """Data whose epochs differ and can be entered anywhere, such as `batches` returns."""

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from batch `start` on."""
        ...


def rest_of_epoch(data: Iterable[Batch] | Epochs, position: Position) -> Iterator[Batch]:
    """The batches of the epoch that is running which the run has not seen.

    Raises:
        ArgumentError: it was begun in an order that no one knows any more.
    """
    epoch = getattr(data, "epoch", None)
    if callable(epoch):  # samplers have an `epoch` that is a number
        return iter(cast("Epochs", data).epoch(position.epoch, position.batch))
    if position.batch > 0:
        require_repeatable(data)
    passed = position.batch
    sampler, size = _sampler(data)
    if isinstance(sampler, KeyedSampler):
        sampler.seek(position.epoch, position.batch * size)
        passed = 0 if size else position.batch
    return itertools.islice(cast("Iterable[Batch]", data), passed, None)


def require_repeatable(data: object) -> None:
    """Refuse a DataLoader that shuffles by torch's generator: a resumed run sees another order.

    Raises:
        ArgumentError: it does.
    """
    sampler, _ = _sampler(data)
    if isinstance(sampler, _BY_CHANCE):
        raise ArgumentError(
            "a run is taken up in the order in which it was begun",
            f"a DataLoader with a {type(sampler).__name__}, whose order is gone with the process",
            "shuffle with sampler=loop.KeyedSampler(key, dataset)",
        )


def _sampler(data: object) -> tuple[Any, int]:
    """The sampler of a DataLoader, and the examples of a batch; 0 where nobody knows."""
    batch_sampler = getattr(data, "batch_sampler", None)
    if batch_sampler is None:  # no batching: every example is a batch
        return getattr(data, "sampler", None), 1
    size = getattr(batch_sampler, "batch_size", None)
    return getattr(batch_sampler, "sampler", None), size if isinstance(size, int) else 0


def length(data: object) -> int | None:
    """The batches of an epoch, or None where nobody knows."""
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:  # a DataLoader over a stream is Sized, and has no length
        return None
