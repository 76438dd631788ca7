"""The structure of a tree as JSON, for what is saved beside compiled code."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from typing import Any

from funcloop._errors import StructureError
from funcloop._pytree import LEAF, Structure

_PLAIN = {kind.__name__: kind for kind in (dict, OrderedDict, list, tuple, type(None))}


def to_json(structure: Structure | str) -> Any:
    """A JSON value for a structure of dicts, lists, tuples, NamedTuples and None.

    Raises:
        StructureError: a container is of another kind, or a key is neither a string nor an int.
    """
    if not isinstance(structure, Structure):
        return LEAF
    kind, keys, children = structure
    by_key = kind in (dict, OrderedDict)
    if not by_key and not issubclass(kind, (list, tuple, type(None))):
        raise _not_saved(f"a {kind.__qualname__}")
    for key in keys if by_key else ():
        if type(key) not in (str, int):
            raise _not_saved(f"a dict with the key {key!r}")
    name = kind.__name__ if kind in _PLAIN.values() else f"{kind.__module__}:{kind.__qualname__}"
    return {
        "kind": name,
        "keys": list(keys) if by_key else len(children),
        "children": [to_json(child) for child in children],
    }


def from_json(value: Any) -> Structure | str:
    """The structure that `to_json` wrote.

    Raises:
        StructureError: a NamedTuple cannot be found any more.
    """
    if value == LEAF:
        return LEAF
    kind, keys = _find(value["kind"]), value["keys"]
    if kind is type(None):
        return Structure(kind, (), ())
    return Structure(
        kind,
        tuple(keys) if isinstance(keys, list) else keys,
        tuple(from_json(child) for child in value["children"]),
    )


def _find(name: str) -> type:
    if name in _PLAIN:
        return _PLAIN[name]
    module, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise StructureError(
            "a NamedTuple of a saved function is imported from where it was",
            name,
            "define it in a module that the loading process can import",
        ) from None
    return found


def _not_saved(value: str) -> StructureError:
    return StructureError(
        "a saved function takes dicts with string keys, lists, tuples, NamedTuples and None",
        value,
        "convert it before the call",
    )
