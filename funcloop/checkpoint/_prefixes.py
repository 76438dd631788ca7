"""Names of a file without what wrappers added to them, found by looking at the names wanted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

#: Modules that only run another one, by the attribute under which they hold it.
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

#: What leads to the whole name where one ends; no component of a dotted name can be it.
_END = "."
#: Names as nested dicts.
Trie: TypeAlias = "dict[str, Trie | str]"


def without_wrappers(names: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """For each dotted name of a file, the name that the model has for it.

    Wrappers are taken out as components of a name, never as substrings, and only where the names
    then fit better. A component is a wrapper's only if nothing stands beside it, since a module
    that wraps another has no tensors of its own; a real child called `module` is left alone.

    >>> without_wrappers(["module.module.fc.weight", "module.head.weight"],
    ...                  ["module.fc.weight", "head.weight"])
    {'module.module.fc.weight': 'module.fc.weight', 'module.head.weight': 'head.weight'}
    """
    names = list(names)
    renamed = _renamed(_trie(names), _trie(wanted))
    return {name: renamed[name] for name in names}


def _trie(names: Iterable[str]) -> Trie:
    root: Trie = {}
    for name in names:
        node = root
        for part in name.split("."):
            below = node.setdefault(part, {})
            assert isinstance(below, dict)  # only _END leads to a name
            node = below
        node[_END] = name
    return root


def _renamed(file: Trie, wanted: Trie) -> dict[str, str]:
    return {name: new for name, new, _ in _matched(file, wanted, "")}


def _matched(file: Trie, wanted: Trie, path: str) -> list[tuple[str, str, bool]]:
    """(name in the file, name in the model, whether the model has it) below two nodes."""
    found: list[tuple[str, str, bool]] = []
    for part, below in file.items():
        beside = wanted.get(part, {})
        if isinstance(below, str):
            found.append((below, path, part in wanted))
        else:
            inside = beside if isinstance(beside, dict) else {}
            found += _matched(below, inside, f"{path}.{part}" if path else part)
    wrapped = _inside_wrapper(file)
    if wrapped is not None:
        bare = _matched(wrapped, wanted, path)
        if sum(fits for *_, fits in bare) > sum(fits for *_, fits in found):
            return bare
    return found


def _inside_wrapper(node: Trie) -> Trie | None:
    if len(node) == 1:
        ((part, below),) = node.items()
        if part in WRAPPERS and isinstance(below, dict):
            return below
    return None
