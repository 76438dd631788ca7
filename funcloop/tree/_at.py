"""A copy of a tree with one part replaced, found by its path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcloop._errors import StructureError
from funcloop._pytree import PyTree, flatten, paths_of, unflatten


def at(tree: PyTree, path: str, value: Any | Callable[[Any], Any]) -> PyTree:
    """`tree` with the leaf at `path` replaced; the tree given is left as it is.

    Args:
        tree: Any tree.
        path: As `tree.paths` writes it.
        value: The new leaf, or a function of the old one.

    >>> at({"lr": 0.1, "nested": [1, 2]}, "nested/1", lambda x: x + 40)
    {'lr': 0.1, 'nested': [1, 42]}

    Raises:
        StructureError: there is no such leaf.
    """
    leaves, structure = flatten(tree)
    known = paths_of(structure)
    if path not in known:
        raise StructureError(
            "a leaf is replaced by its path", f"no leaf at {path!r}", f"use one of {known}"
        )
    place = known.index(path)
    leaves[place] = value(leaves[place]) if callable(value) else value
    return unflatten(structure, leaves)
