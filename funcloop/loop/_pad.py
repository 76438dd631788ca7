"""Sequences of different lengths as one rectangular batch with a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError, ShapeError
from funcloop._pytree import flatten_like
from funcloop._types import Batch, PyTree
from funcloop.loop._batches import with_entries


def pad(
    sequences: Sequence[Any], value: float = 0, *, multiple_of: int = 1
) -> tuple[Tensor, Tensor]:
    """Sequences of shapes (T_i, ...) as one tensor (B, T, ...), and which of it is real.

    Args:
        sequences: At least one tensor, array or list of numbers; they differ in their first
            dimension only.
        value: What the padding holds.
        multiple_of: T is the longest length rounded up to a multiple of this; a jitted step has one
            graph for each T.

    Returns:
        The padded tensor in the sequences' dtype, and the mask, bool (B, T).

    Raises:
        ShapeError: there is no sequence, or they differ in more than their length or in dtype.
        ArgumentError: `multiple_of` is less than one.

    >>> padded, mask = pad([[1, 2, 3], [4]], multiple_of=2)
    >>> padded
    tensor([[1, 2, 3, 0],
            [4, 0, 0, 0]])
    >>> mask.sum(1)
    tensor([3, 1])
    """
    if multiple_of < 1:
        raise ArgumentError(
            "lengths are rounded up to a multiple of at least one",
            f"multiple_of={multiple_of}",
            "give a positive number",
        )
    rows = [torch.as_tensor(row) for row in sequences]
    kinds = {(tuple(row.shape[1:]), row.dtype) if row.ndim else None for row in rows}
    if len(kinds) != 1 or None in kinds:
        raise ShapeError(
            "sequences have shape (T, ...) and differ in their length T only",
            f"shapes {[tuple(row.shape) for row in rows]}, dtypes {[str(r.dtype) for r in rows]}",
            "make their other dimensions and dtypes equal",
        )
    lengths = torch.tensor([len(row) for row in rows])
    longest = -(-int(lengths.max()) // multiple_of) * multiple_of
    padded = rows[0].new_full((len(rows), longest, *rows[0].shape[1:]), value)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded, torch.arange(longest) < lengths[:, None]


def pad_collate(
    examples: Sequence[PyTree],
    *,
    value: PyTree = 0,
    multiple_of: int = 1,
    batch_size: int | None = None,
) -> Batch:
    """`collate_fn` of a DataLoader for examples that hold sequences of any length.

    In each example every tensor or array with a dimension is a sequence over its first one, and all
    of them are equally long: tokens and their tags. Numbers (a class) are stacked. The batch is the
    examples' tree with two entries more, the last ones of a tuple or list, or "mask" and "weight"
    of a dict: the mask, bool (B, T), and the weight of each example, (B,). For sequences of unlike
    lengths in one example, such as two languages, write a function of your own with `pad`.

    A mean over examples takes this weight, a mean over tokens `mask.sum(1)`:

        tokens, tags, mask, weight = batch
        losses = (token_losses * mask).sum(1) / mask.sum(1).clamp(min=1)
        return losses, Aux(buffers, {}, mask.sum(1))

    Args:
        examples: What the data set gave.
        value: What the padding holds: a number, or a tree of numbers like an example
            (`(0, -100)` for tokens and targets).
        multiple_of: The length is rounded up to a multiple of this: fewer shapes, fewer graphs.
        batch_size: Fill up to as many examples with copies of the first, of mask and weight zero.

    Raises:
        ShapeError: an example's sequences differ in length or there are none, examples differ in
            more than length, or there are more than `batch_size`.
        StructureError: examples differ in structure.

    >>> import torch
    >>> from functools import partial
    >>> examples = [([1, 2, 3], 0), ([4], 1)]
    >>> data = [(torch.tensor(tokens), label) for tokens, label in examples]
    >>> loader = torch.utils.data.DataLoader(
    ...     data, batch_size=3, collate_fn=partial(pad_collate, batch_size=3))
    >>> for tokens, labels, mask, weight in loader:
    ...     print(tokens.tolist(), labels.tolist(), mask.sum(1).tolist(), weight.tolist())
    [[1, 2, 3], [4, 0, 0], [1, 2, 3]] [0, 1, 0] [3, 1, 0] [1.0, 1.0, 0.0]
    """
    filled = _filled(examples, batch_size)
    structure = tree.structure(filled[0])
    rows = [flatten_like(structure, e, f"example {i}") for i, e in enumerate(filled)]
    columns = [[torch.as_tensor(x) for x in column] for column in zip(*rows, strict=True)]
    lengths = torch.tensor([_length(i, row) for i, row in enumerate(zip(*columns, strict=True))])
    values = flatten_like(structure, tree.broadcast(value, filled[0]), "value")
    leaves = [
        pad(column, v, multiple_of=multiple_of)[0] if column[0].ndim else torch.stack(column)
        for column, v in zip(columns, values, strict=True)
    ]
    longest = next(leaf.shape[1] for leaf in leaves if leaf.ndim > 1)
    weight = (torch.arange(len(filled)) < len(examples)).float()
    mask = (torch.arange(longest) < lengths[:, None]) & (weight[:, None] > 0)
    return with_entries(tree.unflatten(structure, leaves), mask=mask, weight=weight)


def _filled(examples: Sequence[PyTree], batch_size: int | None) -> list[PyTree]:
    missing = 0 if batch_size is None else batch_size - len(examples)
    if not examples or missing < 0:
        raise ShapeError(
            "a batch is made of one example or more, up to its size",
            f"{len(examples)} examples for batch_size {batch_size}",
            "give the DataLoader the same batch size",
        )
    return [*examples, *[examples[0]] * missing]


def _length(number: int, leaves: tuple[Tensor, ...]) -> int:
    lengths = {len(leaf) for leaf in leaves if leaf.ndim}
    if len(lengths) != 1:
        raise ShapeError(
            "the sequences of one example have the same length",
            f"lengths {sorted(lengths)} in example {number}",
            "collate them yourself, with `pad` for each",
        )
    return lengths.pop()
