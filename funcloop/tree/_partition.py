"""Splitting a tree in two and putting it together again; None stands where a leaf went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcloop._errors import StructureError
from funcloop._pytree import (
    PyTree,
    close_node,
    flatten,
    open_node,
    paths_of,
    tree_map,
    unflatten,
)


def partition(tree: PyTree, predicate: Callable[[str, Any], bool]) -> tuple[PyTree, PyTree]:
    """Two trees with the containers of `tree`: the leaves for which `predicate` holds, the others.

    Args:
        tree: Any tree.
        predicate: `(path, leaf) -> bool`.

    >>> partition({"w": 1, "b": 2}, lambda path, leaf: path == "w")
    ({'w': 1, 'b': None}, {'w': None, 'b': 2})
    """
    leaves, structure = flatten(tree)
    chosen = [bool(predicate(p, x)) for p, x in zip(paths_of(structure), leaves, strict=True)]
    yes = [x if keep else None for x, keep in zip(leaves, chosen, strict=True)]
    no = [None if keep else x for x, keep in zip(leaves, chosen, strict=True)]
    return unflatten(structure, yes), unflatten(structure, no)


def combine(*trees: PyTree) -> PyTree:
    """The tree that has every leaf of trees that `partition` made.

    >>> combine({"w": 1, "b": None}, {"w": None, "b": 2})
    {'w': 1, 'b': 2}

    Raises:
        StructureError: two trees hold the same leaf, or containers differ.
    """
    result = None
    for tree in trees:
        result = _combine(result, tree, "tree")
    return result


def _combine(a: PyTree, b: PyTree, at: str) -> PyTree:
    if a is None or b is None:
        return b if a is None else a
    mine, theirs = open_node(a), open_node(b)
    if mine is None or theirs is None:
        raise StructureError(
            "combined trees hold each leaf once",
            f"{at} is in more than one tree",
            "combine the parts that `partition` returned",
        )
    if mine.kind is not theirs.kind or set(mine.names()) != set(theirs.names()):
        raise StructureError(
            "combined trees have the same containers",
            f"{at} has {mine.names()} and {theirs.names()}",
            "combine the parts that `partition` returned",
        )
    other = dict(zip(theirs.names(), theirs.children, strict=True))
    pairs = zip(mine.names(), mine.children, strict=True)
    children = [_combine(child, other[name], f"{at}/{name}") for name, child in pairs]
    return close_node(mine._replace(children=children))


def broadcast(prefix: PyTree, tree: PyTree) -> PyTree:
    """`prefix` with each leaf repeated over the subtree of `tree` that stands in its place.

    >>> broadcast({"a": True, "b": False}, {"a": [1, 2], "b": {"c": 3}})
    {'a': [True, True], 'b': {'c': False}}

    Raises:
        StructureError: `prefix` is not a prefix of `tree`.
    """
    top = open_node(prefix)
    if top is None:
        return tree_map(lambda _: prefix, tree)
    below = open_node(tree)
    if below is None or set(top.names()) != set(below.names()):
        raise StructureError(
            "a prefix has the containers of its tree, down to its leaves",
            f"the prefix has {top.names()}, the tree {below.names() if below else 'a leaf'}",
            "give one leaf for each subtree, or one for the whole tree",
        )
    places = dict(zip(below.names(), below.children, strict=True))
    pairs = zip(top.names(), top.children, strict=True)
    return close_node(
        top._replace(children=[broadcast(part, places[name]) for name, part in pairs])
    )
