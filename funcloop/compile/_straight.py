"""Straight-line Python that takes trees of one structure apart, and puts them together again.

A compiled step is called thousands of times with the same structure, and walking the tree each time
costs more than small kernels do. So the walk is written out once for each graph.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from funcloop._pytree import Structure, close_node

Flattener = Callable[[Any], "list[Any] | None"]
Builder = Callable[[Sequence[Any]], Any]


def flattener(structure: Structure | str) -> Flattener | None:
    """A function `tree -> leaves`, or None from it where the tree has another structure.

    What stands in a leaf's place is not looked at. Returns None where a registered container
    makes straight-line code impossible.
    """
    source = _Source()
    leaves: list[str] = []
    if not _take_apart(structure, "tree", source, leaves):
        return None
    return source.function("tree", [f"return [{', '.join(leaves)}]"])


def builder(structure: Structure | str) -> Builder:
    """A function `leaves -> tree`; the leaves are a list."""
    source = _Source()
    places = iter(range(_count(structure)))
    result = _put_together(structure, places, source)
    return source.function("leaves", [f"return {result}"])


class _Source:
    """Lines of a function, and the objects that they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}

    def name(self, value: Any) -> str:
        name = f"v{len(self.names)}"
        self.names[name] = value
        return name

    def function(self, argument: str, end: Sequence[str]) -> Any:
        body = [*self.lines, *end]
        text = f"def f({argument}):\n" + "\n".join(f"    {line}" for line in body)
        exec(compile(text, "<straight-line tree code>", "exec"), self.names)
        return self.names["f"]


def _take_apart(
    structure: Structure | str, expression: str, source: _Source, leaves: list[str]
) -> bool:
    if not isinstance(structure, Structure):
        leaves.append(expression)
        return True
    if structure.kind is type(None):
        source.lines.append(f"if {expression} is not None: return None")
        return True
    by_key = structure.kind in (dict, OrderedDict)
    if not by_key and not issubclass(structure.kind, (tuple, list)):
        return False
    variable = f"t{len(source.lines)}"
    kind, count = source.name(structure.kind), len(structure.children)
    source.lines.append(f"{variable} = {expression}")
    source.lines.append(f"if type({variable}) is not {kind} or len({variable}) != {count}:")
    source.lines.append("    return None")
    keys = structure.keys if by_key else range(count)
    if by_key:
        known = source.name(tuple(keys))
        source.lines.append(f"if tuple({variable}) != {known}: return None")
    return all(
        _take_apart(child, f"{variable}[{source.name(key)}]", source, leaves)
        for key, child in zip(keys, structure.children, strict=True)
    )


def _put_together(structure: Structure | str, places: Any, source: _Source) -> str:
    if not isinstance(structure, Structure):
        return f"leaves[{next(places)}]"
    children = [_put_together(child, places, source) for child in structure.children]
    inner = "".join(f"{child}, " for child in children)
    if structure.kind is dict:
        items = zip(structure.keys, children, strict=True)
        return "{" + ", ".join(f"{source.name(key)}: {child}" for key, child in items) + "}"
    if structure.kind is list:
        return f"[{inner}]"
    if structure.kind is tuple:
        return f"({inner})"
    if structure.kind is type(None):
        return "None"
    if issubclass(structure.kind, tuple):
        return f"{source.name(structure.kind)}({inner})"
    close, node = source.name(close_node), source.name(structure)
    return f"{close}({node}._replace(children=[{inner}]))"


def _count(structure: Structure | str) -> int:
    if not isinstance(structure, Structure):
        return 1
    return sum(_count(child) for child in structure.children)
