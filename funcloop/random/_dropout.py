"""Dropout (Hinton et al. 2012, arXiv:1207.0580) from a key."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop._types import Key
from funcloop.random._bernoulli import bernoulli, require_probability
from funcloop.random._stream import require_one_key


def dropout(key: Key, x: Tensor, p: float | Tensor = 0.5) -> Tensor:
    """`x` with each element zero with probability `p`, and the others over `1 - p`.

    The mask depends on the key and on the element's index, not on the dtype.

    Args:
        key: int64, shape (2,): one key. Take a vmap for a batch of keys.
        x: Floating, any shape.
        p: Probability of zero, a number or a 0-d tensor.

    Returns:
        The shape and dtype of `x`.

    Raises:
        ArgumentError: `p` is a Python number outside [0, 1].
        ShapeError: not one key.

    >>> from funcloop.random import key
    >>> sorted(set(dropout(key(0), torch.ones(100), 0.75).tolist()))
    [0.0, 4.0]
    """
    require_one_key(key, "dropout")
    require_probability(p)
    return torch.where(dropped(key, x.shape, p), 0, x * keep_scale(p, x.dtype))


def dropped(key: Key, shape: Sequence[int], p: float | Tensor) -> Tensor:
    """The mask of dropped elements, bool of `shape`."""
    return bernoulli(key, p, shape)


def keep_scale(p: float | Tensor, dtype: torch.dtype) -> float | Tensor:
    """`1 / (1 - p)`, and zero where everything is dropped, so that no gradient is NaN."""
    if not isinstance(p, Tensor):
        return 1 / (1 - p) if p < 1 else 0.0
    kept = 1 - p
    return torch.where(kept > 0, 1 / torch.where(kept > 0, kept, 1), 0).to(dtype)
