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
    """The shape of a tree: hashable, compared in C, one object for each container.

    `children` holds a Structure for a container and `LEAF` for a leaf.
    """

    kind: type
    keys: Any
    children: tuple[Any, ...]


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
_NONE = Structure(type(None), (), ())
_BY_KEY = (dict, OrderedDict)


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
    kind = type(tree)
    if tree is None:
        return _NONE
    if isinstance(tree, Tensor):
        leaves.append(tree)
        return LEAF
    if kind in _BY_KEY:
        return Structure(kind, tuple(tree), tuple([_flatten(v, leaves) for v in tree.values()]))
    if kind is tuple or kind is list or _is_namedtuple(kind):
        return Structure(kind, len(tree), tuple([_flatten(v, leaves) for v in tree]))
    rule = registered_node(kind)
    if rule is None:
        leaves.append(tree)
        return LEAF
    children, context = rule.flatten(tree)
    return Structure(kind, _Context(context), tuple([_flatten(v, leaves) for v in children]))


def unflatten(structure: Structure | str, leaves: Sequence[Any]) -> PyTree:
    """The tree of this structure with these leaves; the inverse of `flatten`.

    Raises:
        StructureError: the number of leaves is another.
    """
    rest = iter(leaves)
    tree = _unflatten(structure, rest)
    if next(rest, LEAF) is not LEAF:
        raise StructureError(
            "a structure takes as many leaves as it has places",
            f"{len(leaves)} leaves for {len(paths_of(structure))} places",
            "give the leaves that `flatten` returned",
        )
    return tree


def _unflatten(structure: Structure | str, rest: Iterator[Any]) -> PyTree:
    if not isinstance(structure, Structure):
        try:
            return next(rest)
        except StopIteration:
            raise StructureError(
                "a structure takes as many leaves as it has places",
                "too few leaves",
                "give the leaves that `flatten` returned",
            ) from None
    kind = structure.kind
    if structure is _NONE or kind is type(None):
        return None
    children = [_unflatten(child, rest) for child in structure.children]
    if kind in _BY_KEY:
        return kind(zip(structure.keys, children, strict=True))
    if kind is list:
        return children
    if kind is tuple:
        return tuple(children)
    if _is_namedtuple(kind):
        return kind(*children)
    rule = registered_node(kind)
    assert rule is not None, kind  # it was found when this structure was made
    return rule.unflatten(children, structure.keys.value)


def flatten_like(structure: Structure | str, tree: PyTree, name: str = "tree") -> list[Any]:
    """The leaves of `tree` in the order of `structure`, matched by key.

    Args:
        structure: What `tree` has to look like; the order of dict keys is free.
        tree: The tree to take apart.
        name: What to call `tree` in an error.

    Raises:
        StructureError: a key is missing or extra, or a container is of another kind.
    """
    leaves: list[Any] = []
    _flatten_like(structure, tree, leaves, name)
    return leaves


def _flatten_like(structure: Structure | str, tree: PyTree, leaves: list[Any], at: str) -> None:
    if not isinstance(structure, Structure):
        if tree is None or not _is_leaf(tree):
            raise StructureError(
                "two trees are matched key by key",
                f"{at} is {_describe(tree)} where the other tree has a leaf",
                "give both trees the same structure",
            )
        leaves.append(tree)
        return
    kind = type(tree)
    if structure.kind in _BY_KEY and kind in _BY_KEY:
        _check_keys(structure.keys, tree, at)
        children = [tree[key] for key in structure.keys]
    elif kind is not structure.kind:
        raise StructureError(
            "two trees are matched key by key",
            f"{at} is {_describe(tree)} where the other tree has a {structure.kind.__name__}",
            "give both trees the same structure",
        )
    else:
        children = _children(tree)
        if len(children) != len(structure.children):
            raise StructureError(
                "two trees are matched key by key",
                f"{at} has {len(children)} entries where the other tree has "
                f"{len(structure.children)}",
                "give both trees the same structure",
            )
    for key, child, value in zip(_key_names(structure), structure.children, children, strict=True):
        _flatten_like(child, value, leaves, f"{at}/{key}")


def _check_keys(keys: tuple[Any, ...], tree: dict[Any, Any], at: str) -> None:
    missing = [key for key in keys if key not in tree]
    extra = [key for key in tree if key not in keys] if missing or len(tree) != len(keys) else []
    if missing or extra:
        raise StructureError(
            "two trees are matched key by key",
            f"{at} lacks {missing} and has {extra} too many",
            "give both trees the same keys",
        )


def _children(tree: PyTree) -> list[Any]:
    if tree is None:
        return []
    if isinstance(tree, (tuple, list)):
        return list(tree)
    rule = registered_node(type(tree))
    assert rule is not None, type(tree)
    return list(rule.flatten(tree)[0])


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _is_leaf(tree: PyTree) -> bool:
    kind = type(tree)
    if isinstance(tree, Tensor):
        return True
    known = kind in _BY_KEY or kind in (tuple, list, type(None)) or _is_namedtuple(kind)
    return not known and registered_node(kind) is None


def _describe(tree: PyTree) -> str:
    return "None" if tree is None else f"a {type(tree).__name__}"


def _key_names(structure: Structure) -> tuple[str, ...]:
    if structure.kind in _BY_KEY:
        return tuple(str(key) for key in structure.keys)
    if _is_namedtuple(structure.kind):
        return structure.kind._fields  # type: ignore[attr-defined]  # it is a NamedTuple
    return tuple(str(i) for i in range(len(structure.children)))


def paths_of(structure: Structure | str) -> list[str]:
    """One path for each leaf, its keys joined by `/`.

    >>> paths_of(flatten({"conv.weight": 1, "head": [2, (3, 4)]})[1])
    ['conv.weight', 'head/0', 'head/1/0', 'head/1/1']
    """
    if not isinstance(structure, Structure):
        return [""]
    return [
        f"{key}/{path}" if path else key
        for key, child in zip(_key_names(structure), structure.children, strict=True)
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
