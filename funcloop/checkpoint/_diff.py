"""What differs between a file and the tree that it is to become, one line a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from funcloop._errors import StructureError

_SHOWN = 30


def refuse_differences(
    file: Mapping[str, str],
    like: Mapping[str, str],
    file_classes: Mapping[str, str],
    like_classes: Mapping[str, str],
) -> None:
    """Compare leaves by path.

    Args:
        file: What each leaf of the file is, by path.
        like: The same of the tree.
        file_classes: The class of each NamedTuple of the file, by path.
        like_classes: The same of the tree. Two optimizers may have fields of the same names and
            shapes, and mean other things by them.

    Raises:
        StructureError: a path is missing on either side, or differs.
    """
    lines = [
        f"{path or 'the tree'}: a {file_classes[path]} in the file, wanted a {kind}"
        for path, kind in like_classes.items()
        if file_classes.get(path, kind) != kind
    ]
    lines += compared(file, like)
    if lines:
        raise StructureError(
            "a checkpoint is restored into a tree like the saved one",
            listed(lines),
            "build like= as the saved tree was built, or read a part with at=",
        )


def compared(file: Mapping[str, str], like: Mapping[str, str]) -> list[str]:
    """One line for each path that is missing on one side, or differs."""
    lines = []
    for path, want in like.items():
        name = path or "the tree"
        if path not in file:
            lines.append(f"{name}: not in the file, wanted {want}")
        elif file[path] != want:
            lines.append(f"{name}: {file[path]} in the file, wanted {want}")
    return lines + [
        f"{path or 'the tree'}: {found} in the file, not wanted"
        for path, found in file.items()
        if path not in like
    ]


def listed(lines: Sequence[str]) -> str:
    """The lines below their number."""
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    head = f"{len(lines)} difference{'s' if len(lines) > 1 else ''}"
    return "\n  ".join([head, *lines[:_SHOWN], *more])
