"""Trees: nested containers taken apart into leaves and put together again.

Containers are dict, list, tuple, NamedTuple, None (an empty tree, as in JAX) and whatever is
registered with torch's pytree registry; anything else is a leaf. Two trees are matched by key and
never by position: a dict in another insertion order is the same tree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torch import Tensor

from funcloop._compat import registered_node
from funcloop._errors import StructureError

T = TypeVar("T")
#: Any nesting of containers; its leaves are usually tensors.
PyTree: TypeAlias = Any


class Structure(NamedTuple):
    """A container: its kind, its keys, and one child for each key.

    In the structure of a tree every child is a Structure or `LEAF`, and the whole is hashable and
    compared in C. In what `open_node` returns the children are the subtrees themselves.
    """

    kind: type
    keys: Any
    children: Sequence[Any]

    def names(self) -> tuple[str, ...]:
        """What each child is called in a path."""
        if self.kind in _BY_KEY:
            return tuple(str(key) for key in self.keys)
        if _is_namedtuple(self.kind):
            return self.kind._fields  # type: ignore[attr-defined]  # it is a NamedTuple
        return tuple(str(i) for i in range(len(self.children)))


class _Context:
    """A registered container's context, which torch does not promise to be hashable."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Context) and self.value == other.value

    def __hash__(self) -> int:
        return hash(_Context)


LEAF = "leaf"
_BY_KEY = (dict, OrderedDict)


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def open_node(tree: PyTree) -> Structure | None:
    """The topmost container of a tree with its subtrees as children; None for a leaf."""
    kind = type(tree)
    if kind in _BY_KEY:
        return Structure(kind, tuple(tree), list(tree.values()))
    if kind is tuple or kind is list or _is_namedtuple(kind):
        return Structure(kind, len(tree), tree)
    if tree is None:
        return Structure(kind, (), ())
    rule = registered_node(kind)
    if rule is None:
        return None
    children, context = rule.flatten(tree)
    return Structure(kind, _Context(context), list(children))


def close_node(node: Structure) -> PyTree:
    """The container of these subtrees; the inverse of `open_node`."""
    kind, keys, children = node
    if kind in _BY_KEY:
        return kind(zip(keys, children, strict=True))
    if kind is tuple or kind is list:
        return kind(children)
    if _is_namedtuple(kind):
        return kind(*children)
    if kind is type(None):
        return None
    rule = registered_node(kind)
    assert rule is not None, kind  # it was found when this node was opened
    return rule.unflatten(children, keys.value)


def flatten(tree: PyTree) -> tuple[list[Any], Structure | str]:
    """The leaves of `tree` from left to right, and its structure.

    >>> leaves, structure = flatten({"a": 1, "b": (2, None, [3])})
    >>> leaves
    [1, 2, 3]
    >>> unflatten(structure, [10, 20, 30])
    {'a': 10, 'b': (20, None, [30])}
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: PyTree, leaves: list[Any]) -> Structure | str:
    node = None if isinstance(tree, Tensor) else open_node(tree)
    if node is None:
        leaves.append(tree)
        return LEAF
    return Structure(
        node.kind, node.keys, tuple([_flatten(child, leaves) for child in node.children])
    )


def unflatten(structure: Structure | str, leaves: Sequence[Any]) -> PyTree:
    """The tree of this structure with these leaves; the inverse of `flatten`.

    >>> unflatten(flatten({"a": 1, "b": [2]})[1], [3, 4])
    {'a': 3, 'b': [4]}

    Raises:
        StructureError: the number of leaves is another.
    """
    rest = iter(leaves)
    try:
        tree = _unflatten(structure, rest)
        complete = next(rest, LEAF) is LEAF
    except _Exhausted:
        tree, complete = None, False
    if not complete:
        raise StructureError(
            "a structure takes as many leaves as it has places",
            f"{len(leaves)} leaves for {len(paths_of(structure))} places",
            "give the leaves that `flatten` returned",
        )
    return tree


class _Exhausted(Exception):
    pass


def _unflatten(structure: Structure | str, rest: Iterator[Any]) -> PyTree:
    if not isinstance(structure, Structure):
        for leaf in rest:
            return leaf
        raise _Exhausted
    children = [_unflatten(child, rest) for child in structure.children]
    return close_node(Structure(structure.kind, structure.keys, children))


def flatten_like(structure: Structure | str, tree: PyTree, name: str = "tree") -> list[Any]:
    """The leaves of `tree` in the order of `structure`, matched by key.

    Args:
        structure: What `tree` has to look like; the order of dict keys is free.
        tree: The tree to take apart.
        name: What to call `tree` in an error.

    >>> flatten_like(flatten({"a": 1, "b": 2})[1], {"b": 20, "a": 10})
    [10, 20]

    Raises:
        StructureError: a key is missing or extra, or a container is of another kind.
    """
    leaves: list[Any] = []
    _flatten_like(structure, tree, leaves, name)
    return leaves


def _flatten_like(structure: Structure | str, tree: PyTree, leaves: list[Any], at: str) -> None:
    node = None if isinstance(tree, Tensor) else open_node(tree)
    if not isinstance(structure, Structure):
        if node is not None:
            raise _mismatch(f"{at} is a {_kind_name(node)} where the other tree has a leaf")
        leaves.append(tree)
        return
    if node is None or not _same_kind(node, structure):
        found = "a leaf" if node is None else f"a {_kind_name(node)}"
        raise _mismatch(f"{at} is {found} where the other tree has a {_kind_name(structure)}")
    children = dict(zip(node.names(), node.children, strict=True))
    names = structure.names()
    missing = [name for name in names if name not in children]
    if missing or len(children) > len(names):
        extra = [name for name in children if name not in names]
        raise _mismatch(f"{at} lacks {missing} and has {extra} too many")
    for name, child in zip(names, structure.children, strict=True):
        _flatten_like(child, children[name], leaves, f"{at}/{name}")


def _same_kind(a: Structure, b: Structure) -> bool:
    return a.kind is b.kind or (a.kind in _BY_KEY and b.kind in _BY_KEY)


def _kind_name(node: Structure) -> str:
    return node.kind.__name__


def _mismatch(value: str) -> StructureError:
    return StructureError(
        "two trees are matched key by key", value, "give both trees the same structure"
    )


def paths_of(structure: Structure | str) -> list[str]:
    """One path for each leaf, its keys joined by `/`.

    >>> paths_of(flatten({"conv.weight": 1, "head": [2, (3, 4)]})[1])
    ['conv.weight', 'head/0', 'head/1/0', 'head/1/1']
    """
    if not isinstance(structure, Structure):
        return [""]
    return [
        f"{key}/{path}" if path else key
        for key, child in zip(structure.names(), structure.children, strict=True)
        for path in paths_of(child)
    ]


def tree_map(f: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """Apply `f` to the leaves of one or more trees, matched by key.

    >>> tree_map(lambda a, b: a + b, {"x": 1, "y": 2}, {"y": 20, "x": 10})
    {'x': 11, 'y': 22}

    Raises:
        StructureError: a tree of `rest` has another structure than `tree`.
    """
    leaves, structure = flatten(tree)
    others = [flatten_like(structure, other, f"tree {i}") for i, other in enumerate(rest, 2)]
    return unflatten(structure, [f(*values) for values in zip(leaves, *others, strict=True)])
