"""`train=`: which modules run in training mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from funcloop._errors import ArgumentError, StructureError
from funcloop.stateless._pattern import matches

#: One mode for all modules, or a mode by pattern of module paths; the first match decides.
Train: TypeAlias = bool | Mapping[str, bool]


def training_flags(train: Train, paths: Sequence[str]) -> tuple[bool, ...]:
    """One flag for each module path.

    In a mapping the first pattern that matches a module decides, as in a chain of if and elif; a
    pattern also takes what lies below the modules it names, and `""` takes everything.

    >>> training_flags({"backbone": False, "": True}, ["", "backbone", "backbone.0", "head"])
    (True, False, False, True)

    Raises:
        ArgumentError: `train` is neither a bool nor a mapping to bools.
        StructureError: a module is matched by no pattern, or a pattern decides nothing.
    """
    if isinstance(train, bool):
        return (train,) * len(paths)
    if not isinstance(train, Mapping) or not all(isinstance(v, bool) for v in train.values()):
        raise ArgumentError(
            "train= is a bool, or a mapping of path patterns to bools",
            repr(train),
            'write train=True, or train={"backbone": False, "": True}',
        )
    deciding: set[str] = set()
    flags = [_first_match(train, path, deciding) for path in paths]
    idle = [pattern for pattern in train if pattern not in deciding]
    if idle:
        raise StructureError(
            "every pattern of train= decides for some module, and the first match decides",
            f"{idle} decide for none",
            "correct the path, or put the narrower pattern before the wider one",
        )
    return tuple(flags)


def _first_match(train: Mapping[str, bool], path: str, deciding: set[str]) -> bool:
    for pattern, flag in train.items():
        if matches(path, pattern):
            deciding.add(pattern)
            return flag
    raise StructureError(
        "train= decides for every module",
        f"no pattern of {list(train)} matches {path!r}",
        'end the mapping with "": True or "": False',
    )
