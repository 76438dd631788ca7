"""What runs in front of training leaves nothing behind: state copied, randomness put back."""

from __future__ import annotations

import contextlib
import random as python_random
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError
from funcloop._types import Batch
from funcloop.loop._epochs import Epochs, rest_of_epoch
from funcloop.loop._keyed_sampler import KeyedSampler
from funcloop.loop._record import Position

State = TypeVar("State")


def copied(state: State) -> State:
    """The state in tensors of its own: a step that donates its argument may have them."""
    return tree.map(lambda x: x.clone() if isinstance(x, Tensor) else x, state)


@contextlib.contextmanager
def randomness_put_back(data: object) -> Iterator[None]:
    """Afterwards whatever reading the data may have moved is where it was.

    The generators of Python, NumPy and torch, those given to a DataLoader or its samplers, and the
    epoch of a KeyedSampler.
    """
    python, legacy = python_random.getstate(), np.random.get_state()
    holders = _holders(data)
    own = [(g, g.get_state()) for g in (getattr(h, "generator", None) for h in holders) if g]
    keyed = [(h, vars(h).copy()) for h in holders if isinstance(h, KeyedSampler)]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            python_random.setstate(python)
            np.random.set_state(legacy)
            for generator, before in own:
                generator.set_state(before)
            for sampler, before in keyed:
                vars(sampler).update(before)


def _holders(data: object) -> list[object]:
    """A DataLoader and its samplers: what may hold a generator."""
    found: list[object] = []
    queue = [data]
    while queue:
        holder = queue.pop()
        if holder is not None and all(holder is not known for known in found):
            found.append(holder)
            queue += [getattr(holder, name, None) for name in ("sampler", "batch_sampler")]
    return found


def batches_forever(data: Iterable[Batch] | Epochs) -> Iterator[Batch]:
    """The batches of epoch after epoch.

    Raises:
        ArgumentError: the data can be read only once, are empty, or are a DataLoader whose workers
            outlive an epoch: their generators cannot be put back.
    """
    if getattr(data, "persistent_workers", False):
        raise _not_as_before("persistent_workers keep the state of their generators")
    if not callable(getattr(data, "epoch", None)) and iter(cast("Any", data)) is data:
        raise _not_as_before(f"a {type(data).__name__} is used up by reading it")
    position = Position()
    while True:
        for batch in rest_of_epoch(data, position):
            position = position.next_batch()
            yield batch
        if position.batch == 0:
            raise ArgumentError(
                "a probe needs data", "no batch came", "give data with at least one batch"
            )
        position = position.next_epoch()


def _not_as_before(value: str) -> ArgumentError:
    return ArgumentError(
        "a probe in front of training leaves the data as they were",
        value,
        "give data that can be iterated again, such as a DataLoader of its own",
    )
