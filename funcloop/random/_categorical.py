"""Draws from a finite set, by the Gumbel maximum (Gumbel 1954) and its top k (Vieira 2014)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop._types import Key
from funcloop.random._exponential import gumbel


def categorical(key: Key, logits: Tensor, shape: Sequence[int] = ()) -> Tensor:
    """Independent categories, each with probability `softmax(logits)`.

    Args:
        key: int64, shape (*K, 2).
        logits: Unnormalised log-probabilities, shape (*B, C); minus infinity is never drawn.
        shape: How many for each of the B rows.

    Returns:
        int64 in [0, C), shape (*K, *shape, *B).

    >>> from funcloop.random import key
    >>> logits = torch.tensor([[0.0, float("-inf")], [float("-inf"), 0.0]])
    >>> categorical(key(0), logits, (3,))
    tensor([[0, 1],
            [0, 1],
            [0, 1]])
    """
    noise = gumbel(key, (*shape, *logits.shape), dtype=_noise_dtype(logits))
    return (logits + noise).argmax(-1)


def without_replacement(key: Key, logits: Tensor, count: int) -> Tensor:
    """`count` different categories in the order in which they are drawn, shape (*K, *B, count)."""
    noise = gumbel(key, logits.shape, dtype=_noise_dtype(logits))
    return (logits + noise).topk(count, -1).indices


def _noise_dtype(logits: Tensor) -> torch.dtype:
    # Sums in half precision would tie.
    return torch.float64 if logits.dtype is torch.float64 else torch.float32
