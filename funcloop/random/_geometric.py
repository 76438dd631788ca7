"""Geometric numbers: how many flips until the first success."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Key
from funcloop.random._broadcast import against
from funcloop.random._floating import open_unit, resolve
from funcloop.random._stream import draw


def geometric(
    key: Key,
    p: float | Tensor,
    shape: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Independent numbers of flips, the successful one included: 1, 2, ...

    Args:
        key: int64, shape (*K, 2).
        p: Probability of success in (0, 1]; a tensor broadcasts against `shape`.
        shape: The shape for one key; None is the shape of `p`.
        dtype: What to return; None is torch's default dtype. Computed in float32, or in float64 for
            float64 and integers.

    Returns:
        Shape (*K, *shape).

    Raises:
        ArgumentError: `p` is a Python number outside (0, 1].

    >>> from funcloop.random import key
    >>> bool((geometric(key(0), 0.5, (100,)) >= 1).all())
    True
    """
    if shape is None:
        shape = p.shape if isinstance(p, Tensor) else ()
    if not isinstance(p, Tensor) and not 0 < p <= 1:
        raise ArgumentError("geometric needs a p of (0, 1]", f"p={p}", "give a probability")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    _, wide, bits = resolve(dtype if dtype.is_floating_point else torch.float64)
    unit = draw(key, shape, lambda words: (open_unit(w, bits) for w in words), bits)
    flips = unit.log() / torch.log1p(-against(shape, p, wide, key.device))
    return flips.ceil().clamp(min=1).to(dtype)
