"""Many trees as one with a leading member dimension, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from funcloop._errors import StructureError
from funcloop._pytree import PyTree, flatten, tree_map, unflatten


def stack(trees: Sequence[PyTree]) -> PyTree:
    """One tree whose leaves have a new leading dimension, one entry for each tree.

    >>> import torch
    >>> stack([{"w": torch.tensor(1)}, {"w": torch.tensor(2)}])
    {'w': tensor([1, 2])}

    Raises:
        StructureError: there is no tree to stack, or their structures differ.
    """
    if not trees:
        raise StructureError("stack takes at least one tree", "an empty sequence", "pass members")
    return tree_map(lambda *leaves: torch.stack(leaves), *trees)


def unstack(tree: PyTree) -> list[PyTree]:
    """The members of a stacked tree; the inverse of `stack`.

    >>> import torch
    >>> unstack({"w": torch.tensor([1, 2])})
    [{'w': tensor(1)}, {'w': tensor(2)}]
    """
    leaves, structure = flatten(tree)
    columns = [leaf.unbind() for leaf in leaves]
    return [unflatten(structure, row) for row in zip(*columns, strict=True)]
