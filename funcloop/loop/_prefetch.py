"""Batches fetched and moved to the device by a thread, while the step before is running."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, cast

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError
from funcloop._types import Batch
from funcloop.loop._epochs import Epochs, rest_of_epoch
from funcloop.loop._record import Position

#: A batch, and what has to be called in the consumer's thread before it may be used.
Moved = tuple[Batch, Callable[[], None]]
_END = object()


class Prefetched:
    """What `prefetch` returns: the same batches in the same order, entered anywhere as before."""

    def __init__(self, data: Iterable[Batch] | Epochs, device: torch.device, ahead: int) -> None:
        self.data = data
        self._device = device
        self._ahead = ahead

    def __getattr__(self, name: str) -> Any:
        """What else the data have: their sampler says whether a run can be taken up."""
        if name.startswith("_"):  # copying and pickling ask before there are data
            raise AttributeError(name)
        return getattr(self.data, name)

    def __len__(self) -> int:
        """The batches of one epoch, where the data know it."""
        return len(cast("Sized", self.data))

    def __iter__(self) -> Iterator[Batch]:
        """One pass over the data."""
        return _fetched(iter(cast("Iterable[Batch]", self.data)), self._device, self._ahead)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from batch `start` on."""
        rest = rest_of_epoch(self.data, Position(0, number, start))
        return _fetched(rest, self._device, self._ahead)


def prefetch(
    data: Iterable[Batch] | Epochs, device: torch.device | str, *, ahead: int = 2
) -> Prefetched:
    """Data whose batches are on the device before they are asked for.

    A thread reads `ahead` batches and moves their tensors; on CUDA it copies through pinned memory
    on a stream of its own. An error in the data is raised where the batch would have come. A
    position counts the batches that were given out, not those that were read.

    Args:
        data: What `batches` returned, a DataLoader (with workers of its own), a list.
        device: Where the tensors go.
        ahead: The batches that wait, at least one.

    Returns:
        An iterable for `fit` and for loops, with `epoch(number, start=0)`.

    Raises:
        ArgumentError: `ahead` is less than one.

    >>> from funcloop.loop import batches
    >>> for x, weight in prefetch(batches(None, torch.arange(4), 2), "cpu"):
    ...     print(x.tolist())
    [0, 1]
    [2, 3]
    """
    if ahead < 1:
        raise ArgumentError(
            "a prefetch is at least one batch ahead", f"ahead={ahead}", "give a positive number"
        )
    return Prefetched(data, torch.device(device), ahead)


def _fetched(batches: Iterator[Batch], device: torch.device, ahead: int) -> Iterator[Batch]:
    """The batches, each moved by the thread; it ends with this generator."""
    moved, stopped = queue.Queue[Any](ahead), threading.Event()
    move = _mover(device)
    # The first batch in this thread: a shuffling sampler then draws its seed from the global
    # generator at a moment that does not depend on the scheduler.
    first = next(batches, _END)
    if first is _END:
        return
    work = threading.Thread(target=_work, args=(batches, move, moved, stopped), daemon=True)
    work.start()
    try:
        yield _ready(move(first))
        while (item := moved.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield _ready(item)
    finally:
        stopped.set()
        work.join()


def _work(
    batches: Iterator[Batch],
    move: Callable[[Batch], Moved],
    moved: queue.Queue[Any],
    stopped: threading.Event,
) -> None:
    try:
        for batch in batches:
            if not _put(moved, move(batch), stopped):
                return
        _put(moved, _END, stopped)
    except BaseException as error:
        _put(moved, error, stopped)


def _put(moved: queue.Queue[Any], item: Any, stopped: threading.Event) -> bool:
    """Whether there is still somebody who wants the item."""
    while not stopped.is_set():
        try:
            moved.put(item, timeout=0.05)
            return True
        except queue.Full:
            continue
    return False


def _ready(moved: Moved) -> Batch:
    batch, wait = moved
    wait()
    return batch


def _mover(device: torch.device) -> Callable[[Batch], Moved]:
    if device.type != "cuda":
        return lambda batch: (_map_tensors(lambda x: x.to(device), batch), lambda: None)
    device = torch.empty(0, device=device).device  # "cuda" means another one in another thread
    stream = torch.cuda.Stream(device)

    def move(batch: Batch) -> Moved:
        with torch.cuda.stream(stream):
            there = _map_tensors(lambda x: _pinned(x).to(device, non_blocking=True), batch)
            copied = stream.record_event()

        def wait() -> None:
            current = torch.cuda.current_stream(device)
            current.wait_event(copied)
            # The allocator must not give the memory away while the step still reads it.
            _map_tensors(lambda x: x.record_stream(current), there)

        return there, wait

    return move


def _pinned(x: Tensor) -> Tensor:
    return x.pin_memory() if x.device.type == "cpu" else x


def _map_tensors(f: Callable[[Tensor], Any], batch: Batch) -> Batch:
    return tree.map(lambda x: f(x) if isinstance(x, Tensor) else x, batch)
