"""Arrays in memory as epochs of equal batches, shuffled by a key; every batch has a position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from funcloop import random, tree
from funcloop._errors import ArgumentError, ShapeError, StructureError
from funcloop._types import Batch, Key, PyTree


@dataclass(frozen=True)
class Batches:
    """What `batches` returns: a value, so a loop may be cut anywhere and taken up again.

    Attributes:
        key: Key of the order, shape (2,); None keeps the order of the arrays.
        arrays: Tree of tensors, each of shape (N, ...).
        weight: Weight of each example, shape (N,).
        batch_size: The examples in every batch.
    """

    key: Key | None
    arrays: PyTree
    weight: Tensor
    batch_size: int

    def __len__(self) -> int:
        """The batches of one epoch."""
        return -(-len(self.weight) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Epoch 0."""
        return self.epoch(0)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from batch `start` on.

        Args:
            number: Which epoch; each has an order of its own.
            start: How many batches to pass over. They are not read.
        """
        examples, order = len(self.weight), self._order(number)
        for first in range(start * self.batch_size, examples, self.batch_size):
            places = torch.arange(first, first + self.batch_size, device=order.device)
            rows = order[places % examples]
            weight = torch.where(places < examples, self.weight[rows], 0)
            batch = tree.map(lambda x, r=rows: x[r.to(x.device)], self.arrays)
            yield with_entries(batch, weight=weight)

    def _order(self, number: int) -> Tensor:
        device = self.weight.device
        if self.key is None:
            return torch.arange(len(self.weight), device=device)
        key = random.fold_in(self.key, number)
        return random.permutation(key, len(self.weight)).to(device)


def batches(
    key: Key | None, arrays: PyTree, batch_size: int, *, weight: Tensor | None = None
) -> Batches:
    """Epochs of batches of exactly `batch_size` examples with their weights.

    A batch is the arrays' tree with a weight of shape (B,) added: a tuple or list of arrays gains
    it as its last entry, a dict under "weight", and anything else becomes `(arrays, weight)`. So
    `supervised` takes the batches of `(x, y)` as they are, and a LossFn of one's own writes
    `x, y, weight = batch` and returns `Aux(buffers, metrics, weight)`.

    The last batch is filled up with examples from the front of the epoch's order, of weight zero:
    every batch has the same shape, a jitted step has one graph, and all means stay exact. The
    filling examples are real ones, so statistics over the batch (BatchNorm) see no made-up data.

    Epoch `n` is ordered by `fold_in(key, n)`.

    Args:
        key: Key of the order, shape (2,). None keeps the order of the arrays, for evaluation.
        arrays: Tree of tensors or NumPy arrays, each of shape (N, ...); batches are made on the
            device where they are.
        batch_size: The examples in a batch; it may exceed N.
        weight: Weight of each example, shape (N,); ones by default.

    Returns:
        An iterable over epoch 0, with `len` (batches in an epoch) and `epoch(number, start=0)`.

    Raises:
        ArgumentError: `batch_size` is less than one.
        ShapeError: the arrays have no examples or differ in their number.

    >>> data = batches(None, (torch.arange(5), torch.arange(5) * 10), 3)
    >>> for x, y, weight in data:
    ...     print(x.tolist(), y.tolist(), weight.tolist())
    [0, 1, 2] [0, 10, 20] [1.0, 1.0, 1.0]
    [3, 4, 0] [30, 40, 0] [1.0, 1.0, 0.0]
    >>> shuffled = batches(random.key(0), torch.arange(5), 5)
    >>> sorted(next(shuffled.epoch(1))[0].tolist())
    [0, 1, 2, 3, 4]
    """
    if batch_size < 1:
        raise ArgumentError(
            "a batch holds at least one example", f"batch_size {batch_size}", "give a positive size"
        )
    arrays = tree.map(torch.as_tensor, arrays)
    sizes = {path: tuple(x.shape) for path, x in tree.items(arrays)}
    counts = {shape[:1] for shape in sizes.values()}
    if len(counts) != 1 or counts & {(), (0,)}:
        raise ShapeError(
            "arrays have the same leading dimension, the examples, and at least one",
            f"shapes {sizes}",
            "give one row for each example in every array",
        )
    ((examples,),) = counts
    if weight is None:
        weight = torch.ones(examples, device=tree.leaves(arrays)[0].device)
    elif weight.shape != (examples,):
        raise ShapeError(
            "there is one weight for each example",
            f"weight of shape {tuple(weight.shape)} for {examples} examples",
            "give shape (N,)",
        )
    return Batches(key, arrays, weight, batch_size)


def with_entries(batch: PyTree, **entries: Tensor) -> Batch:
    """The batch with entries added: last in a tuple, by name in a dict, beside anything else.

    Raises:
        StructureError: a dict has one of these names.
    """
    if type(batch) in (tuple, list):
        return (*batch, *entries.values())
    if isinstance(batch, dict):
        if taken := sorted(batch.keys() & entries.keys()):
            raise StructureError(
                "a batch gains its weights under a name that is free",
                f"the batch has {taken} already",
                "give them as weight=, or under another name and multiply in the loss",
            )
        return {**batch, **entries}
    return (batch, *entries.values())
