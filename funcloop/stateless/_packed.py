"""Sequences of several lengths, packed and padded in plain operators inside of transforms."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from funcloop._compat import transforming
from funcloop.stateless._writes import Function, Watcher


def pack(
    guard: Watcher, func: Function, /, input: Tensor, lengths: Tensor, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """What `pack_padded_sequence` calls: rows of all steps in one tensor, and how many a step has.

    Args:
        guard: The active guard.
        func: torch's function.
        input: (B, T, ...) if `batch_first`, else (T, B, ...).
        lengths: (B,), falling, the same for all members of a vmap.
        batch_first: Which dimension comes first.
    """
    if not transforming():
        return guard.proceed(func, input, lengths, batch_first)
    rows = [sum(length > t for length in lengths.tolist()) for t in range(int(lengths[0]))]
    steps = input.unbind(int(batch_first))
    return torch.cat([x[:n] for x, n in zip(steps, rows, strict=False)]), torch.tensor(rows)


def pad(
    guard: Watcher,
    func: Function,
    /,
    data: Tensor,
    batch_sizes: Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> tuple[Tensor, Tensor]:
    """What `pad_packed_sequence` calls: the inverse, to at least `total_length` steps."""
    if not transforming():
        return guard.proceed(func, data, batch_sizes, batch_first, padding_value, total_length)
    rows = batch_sizes.tolist()
    steps = [
        F.pad(x, (*[0] * (2 * (x.ndim - 1)), 0, rows[0] - n), value=padding_value)
        for x, n in zip(data.split(rows), rows, strict=True)
    ]
    steps += [torch.full_like(steps[0], padding_value)] * (total_length - len(rows))
    lengths = [sum(n > row for n in rows) for row in range(rows[0])]
    return torch.stack(steps, int(batch_first)), torch.tensor(lengths)
