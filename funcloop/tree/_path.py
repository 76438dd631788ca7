"""Leaves by their paths: keys joined by `/`, as in `params/conv.weight`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcloop._pytree import PyTree, Structure, flatten, paths_of, unflatten


def structure(tree: PyTree) -> Structure | str:
    """The containers and keys of a tree, without its leaves; hashable.

    >>> structure({"a": 1}) == structure({"a": 2}) != structure({"b": 1})
    True
    """
    return flatten(tree)[1]


def leaves(tree: PyTree) -> list[Any]:
    """The leaves from left to right; None holds none.

    >>> leaves({"a": 1, "b": (2, None)})
    [1, 2]
    """
    return flatten(tree)[0]


def paths(tree: PyTree) -> list[str]:
    """The path of each leaf, in the order of `leaves`.

    >>> paths({"layer.weight": 1, "extra": (2, None, 3)})
    ['layer.weight', 'extra/0', 'extra/2']
    """
    return paths_of(structure(tree))


def items(tree: PyTree) -> list[tuple[str, Any]]:
    """Pairs of path and leaf.

    >>> items({"a": [5, 6]})
    [('a/0', 5), ('a/1', 6)]
    """
    values, shape = flatten(tree)
    return list(zip(paths_of(shape), values, strict=True))


def map_with_path(f: Callable[[str, Any], Any], tree: PyTree) -> PyTree:
    """Apply `f(path, leaf)` to every leaf.

    >>> map_with_path(lambda path, leaf: f"{path}={leaf}", {"a": [1]})
    {'a': ['a/0=1']}
    """
    values, shape = flatten(tree)
    return unflatten(shape, [f(p, v) for p, v in zip(paths_of(shape), values, strict=True)])


def size(tree: PyTree) -> int:
    """The number of elements over all leaves.

    >>> import torch
    >>> size({"w": torch.ones(2, 3), "b": torch.ones(())})
    7
    """
    return sum(leaf.numel() for leaf in leaves(tree))
