"""Freeze and thaw: parameters move between params and buffers, and nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from funcloop._errors import StructureError
from funcloop.stateless._pattern import Pattern, as_patterns, matching

Leaves = dict[str, Tensor]


def freeze(
    order: Sequence[str],
    params: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    pattern: Pattern,
) -> tuple[Leaves, Leaves]:
    """Move the params that the pattern matches to the buffers."""
    chosen = _chosen(order, params, pattern)
    kept = {name: value for name, value in params.items() if name not in chosen}
    return kept, {**buffers, **{name: params[name] for name in params if name in chosen}}


def thaw(
    order: Sequence[str],
    params: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    pattern: Pattern,
) -> tuple[Leaves, Leaves]:
    """Move the frozen parameters that the pattern matches back to the params."""
    chosen = _chosen(order, buffers, pattern)
    kept = {name: value for name, value in buffers.items() if name not in chosen}
    both = {**params, **{name: buffers[name] for name in chosen}}
    ordered = {name: both[name] for name in order if name in both}
    return {**ordered, **{name: both[name] for name in both if name not in ordered}}, kept


def _chosen(order: Sequence[str], leaves: Mapping[str, Tensor], pattern: Pattern) -> set[str]:
    """Names of the module's parameters among `leaves` that the pattern matches.

    Raises:
        StructureError: one of the patterns matches none.
    """
    candidates = [name for name in order if name in leaves]
    chosen: set[str] = set()
    for one in as_patterns(pattern):
        found = matching(candidates, one)
        if not found:
            raise StructureError(
                "a pattern matches at least one parameter that can move",
                f"{one!r} matches none of {candidates}",
                "correct the name; `*` crosses dots, and a module's path takes all below it",
            )
        chosen.update(found)
    return chosen
