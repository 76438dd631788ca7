"""Casts of the floating leaves of a tree."""

from __future__ import annotations

import torch

from funcloop._pytree import PyTree, tree_map


def cast(tree: PyTree, dtype: torch.dtype) -> PyTree:
    """Every real floating leaf in `dtype`; counters, masks and complex leaves stay as they are.

    >>> import torch
    >>> cast([torch.ones(1), torch.ones(1, dtype=torch.int64)], torch.float16)
    [tensor([1.], dtype=torch.float16), tensor([1])]
    """
    return tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, tree)
