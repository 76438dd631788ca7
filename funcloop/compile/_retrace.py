"""Why a jitted function has made another graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from funcloop._pytree import paths_of
from funcloop.compile._signature import Signature


def explain_last(signatures: Sequence[Signature]) -> str:
    """One line for each leaf in which the last signature differs from the nearest earlier one."""
    if not signatures:
        return "no graph yet: the function has not been called"
    if len(signatures) == 1:
        return "one graph: nothing was re-traced"
    *earlier, last = signatures
    fewest = min((list(differences(last, old)) for old in earlier), key=len)
    return "\n".join([f"graph {len(signatures)} was made, because", *fewest])


def differences(new: Signature, old: Signature) -> Iterator[str]:
    """One line for each leaf in which the new signature differs from the old."""
    if new.ambient != old.ambient:
        yield f"  default dtype, default device or autocast is {new.ambient}, was {old.ambient}"
    now = dict(zip(_paths(new), new.leaves, strict=True))
    before = dict(zip(_paths(old), old.leaves, strict=True))
    for path, leaf in now.items():
        if path not in before:
            yield f"  argument {path} is new"
        elif leaf != before[path]:
            yield from _leaf_differences(path, leaf, before[path])
    for path in before:
        if path not in now:
            yield f"  argument {path} is gone"
    if new.structure != old.structure and now.keys() == before.keys():
        yield "  the containers or the order of their keys differ"


def _paths(signature: Signature) -> list[str]:
    """Paths without the leading `0` or `1` that tells positional from keyword arguments."""
    return [path.split("/", 1)[-1] for path in paths_of(signature.structure)]


def _leaf_differences(path: str, new: Any, old: Any) -> Iterator[str]:
    if type(new) is not type(old):
        yield f"  argument {path} is {new}, was {old}"
        return
    for name, a, b in zip(new._fields, new, old, strict=True):
        if a != b:
            shown = [tuple(x) if isinstance(x, tuple) else x for x in (a, b)]
            yield f"  argument {path} has {name} {shown[0]}, was {shown[1]}"
