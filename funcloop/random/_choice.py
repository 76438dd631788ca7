"""A random selection of numbers or of a tensor's slices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop._errors import ArgumentError, ShapeError
from funcloop._types import Key
from funcloop.random._categorical import categorical, without_replacement
from funcloop.random._permutation import permutation
from funcloop.random._randint import randint
from funcloop.random._stream import require_one_key


def choice(
    key: Key,
    a: int | Tensor,
    shape: Sequence[int] = (),
    *,
    replace: bool = True,
    p: Tensor | None = None,
) -> Tensor:
    """Elements of `a`, or of 0 to a - 1, with or without replacement.

    Args:
        key: int64, shape (2,).
        a: A count, or a tensor whose first dimension is chosen from.
        shape: How many.
        replace: Whether an element can be chosen twice.
        p: Weight of each element, shape (n,), not necessarily normalised; None weighs all alike.
            Without replacement at least as many weights as are chosen have to be positive.

    Returns:
        Shape (*shape,), or (*shape, *a.shape[1:]) for a tensor.

    Raises:
        ArgumentError: nothing to choose from, or more without replacement than there are.
        ShapeError: `p` has another shape, or not one key.

    >>> from funcloop.random import key
    >>> choice(key(0), 5, (5,), replace=False).sort().values
    tensor([0, 1, 2, 3, 4])
    >>> choice(key(0), torch.tensor([10, 20]), (3,), p=torch.tensor([0.0, 1.0]))
    tensor([20, 20, 20])
    """
    require_one_key(key, "choice")
    n, count = a if isinstance(a, int) else a.shape[0], math.prod(shape)
    if count and (n < 1 or (not replace and count > n)):
        raise ArgumentError(
            "choice needs enough to choose from", f"{count} of {n}", "choose fewer, or replace=True"
        )
    if p is not None and p.shape != (n,):
        raise ShapeError("choice needs one weight an element", str(tuple(p.shape)), f"give ({n},)")
    if p is None:
        index = randint(key, (count,), 0, max(n, 1)) if replace else permutation(key, n)[:count]
    else:
        draw = categorical if replace else without_replacement
        index = draw(key, p.log(), (count,) if replace else count)  # type: ignore[arg-type]  # one each
    index = index.reshape(tuple(shape))
    return (
        index
        if isinstance(a, int)
        else torch.index_select(a, 0, index.flatten()).reshape(*shape, *a.shape[1:])
    )
