"""The last step of every update: params plus updates, rounded once."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from funcloop._pytree import PyTree, paths_of, unflatten
from funcloop._types import Params
from funcloop.optim._leaves import ABSENT, align, check_leaf


def apply_updates(params: Params, updates: PyTree) -> Params:
    """`params + updates`, each leaf in the dtype of its param.

    The sum is taken in the wider of both dtypes and rounded once, so that a bfloat16 param gets
    the float32 result. A leaf whose update is None is returned as it is.

    Args:
        params: Any pytree of tensors.
        updates: What `tx.update` returned, matched with the params by key.

    Returns:
        The new params, with the structure, shapes and dtypes of `params`.

    Raises:
        StructureError: a key is missing or extra.
        ShapeError: an update has another shape than its param.

    >>> import torch
    >>> apply_updates({"a": torch.tensor(1.0)}, {"a": torch.tensor(-0.5)})
    {'a': tensor(0.5000)}
    """
    (changes, leaves), structure = align(updates, [params])
    rows = zip(paths_of(structure), leaves, changes, strict=True)
    return unflatten(structure, [_add(path, param, change) for path, param, change in rows])


def _add(path: str, param: Tensor, change: Any) -> Tensor:
    if change is ABSENT:
        return param
    check_leaf(path, change, [param])
    return (param + change).to(param.dtype)
