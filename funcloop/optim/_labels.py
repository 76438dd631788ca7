"""Which leaf belongs where: by a tree of labels, by patterns of paths, or by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from funcloop import tree
from funcloop._errors import StructureError
from funcloop._pytree import PyTree, flatten_like
from funcloop._types import Params

#: Leaves that take part: a tree of bools (or a prefix of one), one path pattern or a list of them
#: (`"*.weight"`), or a function of the params that returns either.
Mask: TypeAlias = "PyTree | str | Sequence[str] | Callable[[Params], Any]"
#: A label for each leaf: a tree of strings (or a prefix of one), a dict from path pattern to label
#: whose first match counts, or a function of the params that returns either.
Labels: TypeAlias = "PyTree | Mapping[str, str] | Callable[[Params], Any]"


def mask_of(mask: Mask, params: Params) -> list[bool]:
    """Whether each leaf of `params` takes part, in the order of its leaves.

    Raises:
        StructureError: a tree of bools does not fit the params.
    """
    if callable(mask):
        mask = mask(params)
    if isinstance(mask, str):
        mask = [mask]
    if isinstance(mask, (list, tuple)) and all(isinstance(pattern, str) for pattern in mask):
        return [any(fnmatchcase(path, p) for p in mask) for path in tree.paths(params)]
    return [bool(leaf) for leaf in _leaves_like(params, mask, "mask")]


def labels_of(labels: Labels, params: Params) -> list[str]:
    """The label of each leaf of `params`, in the order of its leaves.

    Raises:
        StructureError: a leaf has no label, or a tree of labels does not fit the params.
    """
    if callable(labels):
        labels = labels(params)
    if isinstance(labels, Mapping) and not _is_prefix(labels, params):
        return [_first_match(path, labels) for path in tree.paths(params)]
    return _leaves_like(params, labels, "labels")


def _leaves_like(params: Params, prefix: PyTree, name: str) -> list[Any]:
    return flatten_like(tree.structure(params), tree.broadcast(prefix, params), name)


def _is_prefix(labels: Mapping[str, Any], params: Params) -> bool:
    return isinstance(params, Mapping) and set(labels) == set(params)


def _first_match(path: str, patterns: Mapping[str, str]) -> str:
    for pattern, label in patterns.items():
        if fnmatchcase(path, pattern):
            return label
    raise StructureError(
        "every leaf has a label",
        f"{path} matches none of {list(patterns)}",
        "add the pattern '*' as the last one",
    )
