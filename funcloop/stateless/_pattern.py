"""Path patterns: one shell pattern over dotted names, which also takes everything below a match."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

#: One shell pattern over dotted names, or several.
Pattern: TypeAlias = str | Sequence[str]


def matches(path: str, pattern: str) -> bool:
    """Whether the pattern names this path or one of the modules that it lies in.

    `*` crosses dots, as it does in `fnmatch`; the empty pattern is the root, so everything.

    >>> matches("backbone.0.weight", "backbone"), matches("backbone.0.weight", "*.weight")
    (True, True)
    >>> matches("backbone2.weight", "backbone"), matches("head.bias", "")
    (False, True)
    """
    parts = path.split(".")
    above = [".".join(parts[:n]) for n in range(len(parts) + 1)]
    return any(fnmatchcase(name, pattern) for name in above)


def as_patterns(pattern: Pattern) -> tuple[str, ...]:
    return (pattern,) if isinstance(pattern, str) else tuple(pattern)


def matching(names: Iterable[str], pattern: str) -> list[str]:
    return [name for name in names if matches(name, pattern)]
