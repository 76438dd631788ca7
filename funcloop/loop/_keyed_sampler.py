"""The order of a DataLoader from a key: every epoch has one of its own, entered anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from funcloop import random
from funcloop._errors import ArgumentError
from funcloop._types import Key


class KeyedSampler:
    """A `sampler=` for `torch.utils.data.DataLoader` whose order is a function of key and epoch.

    Epoch `n` is ordered by `fold_in(key, n)`, as that of `batches` is. Iterated again and again it
    gives one epoch after the other; `fit` seeks the place where a run was cut, also in the middle
    of an epoch and whatever the workers have read ahead.

    What the workers draw at random (augmentation) is not in the key: torch seeds them anew for
    every epoch. Let the data set draw from a key of its own and the index, or augment in the step.

    Args:
        key: Key of the order, shape (2,).
        examples: How many there are, or the data set.

    Raises:
        ArgumentError: there are none.

    >>> import torch
    >>> sampler = KeyedSampler(random.key(0), 6)
    >>> loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=2, sampler=sampler)
    >>> first, second = list(loader), list(loader)
    >>> sampler.seek(epoch=1, start=4)
    >>> [x.tolist() for x in loader] == [x.tolist() for x in second[2:]] != first[2:]
    True
    """

    def __init__(self, key: Key, examples: int | Sized) -> None:
        self.key = key
        self.examples = examples if isinstance(examples, int) else len(examples)
        self._epoch, self._start = 0, 0
        if self.examples < 1:
            raise ArgumentError(
                "an order is of at least one example", f"{self.examples} examples", "give data"
            )

    def __len__(self) -> int:
        """The examples of one epoch."""
        return self.examples

    def __iter__(self) -> Iterator[int]:
        """The indices of the next epoch, or of the rest of one after `seek`."""
        epoch, start = self._epoch, self._start
        self.seek(epoch + 1)
        order = random.permutation(random.fold_in(self.key, epoch), self.examples)
        return iter(order[start:].tolist())

    def seek(self, epoch: int, start: int = 0) -> None:
        """Let the next iteration begin in this epoch, after `start` of its examples."""
        self._epoch, self._start = epoch, start
