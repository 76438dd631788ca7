"""The structure of a tree as JSON, for what is saved beside compiled code and beside tensors."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from typing import Any

from funcloop._errors import StructureError
from funcloop._pytree import LEAF, Structure

_PLAIN = {kind.__name__: kind for kind in (dict, OrderedDict, list, tuple, type(None))}
_BY_KEY = (dict, OrderedDict)


def to_json(structure: Structure | str) -> Any:
    """A JSON value for any structure whose dicts have strings and ints as keys.

    A container is `{"kind", "keys", "children"}`; its keys are those of a dict, the fields of a
    NamedTuple, or else the number of children.

    Raises:
        StructureError: a key is neither a string nor an int.
    """
    if not isinstance(structure, Structure):
        return LEAF
    kind, keys, children = structure
    by_key = kind in _BY_KEY
    for key in keys if by_key else ():
        if type(key) not in (str, int):
            raise StructureError(
                "a saved dict has strings and ints as keys",
                f"a dict with the key {key!r}",
                "rename it before the tree is saved",
            )
    fields = getattr(kind, "_fields", None) if issubclass(kind, tuple) else None
    name = kind.__name__ if kind in _PLAIN.values() else f"{kind.__module__}:{kind.__qualname__}"
    return {
        "kind": name,
        "keys": list(keys) if by_key else len(children) if fields is None else list(fields),
        "children": [to_json(child) for child in children],
    }


def from_json(value: Any) -> Structure | str:
    """The structure that `to_json` wrote; its classes are imported from where they were.

    Raises:
        StructureError: a NamedTuple cannot be found any more or has other fields, or a container is
            of a kind that JSON does not describe.
    """
    if value == LEAF:
        return LEAF
    kind, keys = _find(value["kind"]), value["keys"]
    plain = kind in _PLAIN.values()
    if not plain and not hasattr(kind, "_fields"):
        raise StructureError(
            "a saved function takes dicts, lists, tuples, NamedTuples and None",
            f"a {value['kind']}",
            "convert it before the call",
        )
    children = tuple(from_json(child) for child in value["children"])
    if kind in _BY_KEY:
        return Structure(kind, tuple(keys), children)
    if kind is type(None):
        return Structure(kind, (), ())
    if not plain and list(kind._fields) != keys:  # type: ignore[attr-defined]  # a NamedTuple
        raise _moved(f"{value['kind']} had the fields {keys}")
    return Structure(kind, len(children), children)


def plain_from_json(value: Any) -> Structure | str:
    """The structure that `to_json` wrote in dicts, lists and tuples only, under the same paths.

    A NamedTuple becomes a dict of its fields, and a registered container a list: nothing is
    imported because a file says so.
    """
    if value == LEAF:
        return LEAF
    kind, keys = value["kind"], value["keys"]
    children = tuple(plain_from_json(child) for child in value["children"])
    if isinstance(keys, list):
        return Structure(dict, tuple(keys), children)
    if kind == type(None).__name__:
        return Structure(type(None), (), ())
    return Structure(tuple if kind == tuple.__name__ else list, len(children), children)


def named_children(value: Any) -> list[tuple[str, Any]]:
    """The children of a container that `to_json` wrote, by their names in a path."""
    if value == LEAF:
        return []
    keys = value["keys"]
    names = map(str, keys if isinstance(keys, list) else range(len(value["children"])))
    return list(zip(names, value["children"], strict=True))


def count_leaves(value: Any) -> int:
    """The leaves below a container, or 1 for a leaf."""
    return 1 if value == LEAF else sum(map(count_leaves, value["children"]))


def classes(value: Any, path: str = "") -> dict[str, str]:
    """The class of each NamedTuple, without its module, by path."""
    if value == LEAF:
        return {}
    found = {}
    if ":" in value["kind"] and isinstance(value["keys"], list):
        found[path] = value["kind"].partition(":")[2]
    for name, child in named_children(value):
        found |= classes(child, f"{path}/{name}" if path else name)
    return found


def _find(name: str) -> type:
    if name in _PLAIN:
        return _PLAIN[name]
    module, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise _moved(name) from None
    return found


def _moved(value: str) -> StructureError:
    return StructureError(
        "a NamedTuple of a saved function is imported as it was, from where it was",
        value,
        "define it in a module that the loading process can import",
    )
