"""The tree of a file: leaf by leaf what the tree beside it asks for, or an error."""

from __future__ import annotations

from collections.abc import Hashable
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor

from funcloop._errors import StructureError
from funcloop._pytree import PyTree, flatten, paths_of, unflatten
from funcloop._structure_json import (
    classes,
    count_leaves,
    named_children,
    plain_from_json,
    to_json,
)
from funcloop.checkpoint._diff import refuse_differences
from funcloop.checkpoint._file import Contents, Opened, opened, unique
from funcloop.checkpoint._leaf import (
    Facts,
    described,
    facts_of,
    identity,
    same_bits,
    scalar,
    tensor,
)

Device = str | torch.device


def restore(
    path: str | PathLike[str],
    like: PyTree = None,
    *,
    at: str = "",
    map_location: Device | None = None,
) -> PyTree:
    """The tree that `save` wrote.

    With `like`, the result has its containers and classes (a TrainState, the states of an
    optimizer), its devices and its `requires_grad`. Leaves are matched by path, never by position,
    and have to agree in kind, dtype and shape; nothing is cast or left out. Leaves that `like` ties
    (one tensor at two paths) come back tied, and have to have one value in the file.

    Without `like`, the result is of plain dicts, lists and tuples: a NamedTuple comes back as a
    dict of its fields, since a file has no say in what is imported. Ties are those of the file.

    Args:
        path: The file.
        like: A tree as it was saved, e.g. a fresh `TrainState.create(...)`. Its values do not
            matter, and its tensors may be on the meta device.
        at: The path of a part, e.g. `"params"` of a TrainState; only that part is read.
        map_location: The device of all tensors, instead of those of `like`, or of the CPU.

    Raises:
        StructureError: `like` and the file differ; each path that does is listed. Or nothing is
            at `at`.
        CheckpointError: the file is not one that `save` wrote.
        FileNotFoundError: there is no file.
        MissingExtraError: safetensors is not installed.

    >>> import tempfile
    >>> from funcloop.checkpoint import save
    >>> path = tempfile.mkdtemp() + "/state.safetensors"
    >>> save(path, {"params": {"w": torch.tensor([1.0, 2.0])}, "step": 3})
    >>> restore(path, like={"step": 0, "params": {"w": torch.zeros(2)}})
    {'step': 3, 'params': {'w': tensor([1., 2.])}}
    >>> restore(path, at="params")
    {'w': tensor([1., 2.])}
    >>> restore(path, like={"w": torch.zeros(3)}, at="params")
    Traceback (most recent call last):
    funcloop._errors.StructureError: a checkpoint is restored into a tree like the saved one: 1 ...
      w: float32 (2,) in the file, wanted float32 (3,)...
    """
    with opened(path) as file:
        structure, facts = _part(file.contents, at, fspath(path))
        if like is None:
            return _plain(file, structure, facts, torch.device(map_location or "cpu"))
        return _like(file, structure, facts, like, map_location)


def _plain(file: Opened, structure: Any, facts: list[Facts], device: torch.device) -> PyTree:
    made: dict[str, Tensor] = {}

    def leaf(facts: Facts) -> Any:
        if "tensor" not in facts:
            return scalar(facts)
        name = facts["tensor"]
        if name not in made:
            made[name] = tensor(facts, file.numbers(name), device)
        return made[name]

    return unflatten(plain_from_json(structure), [leaf(f) for f in facts])


def _like(
    file: Opened, structure: Any, facts: list[Facts], like: PyTree, location: Device | None
) -> PyTree:
    leaves, shape = flatten(like)
    wanted = dict(zip(unique(paths_of(shape), "like"), leaves, strict=True))
    found = dict(zip(paths_of(plain_from_json(structure)), facts, strict=True))
    refuse_differences(
        {path: described(fact) for path, fact in found.items()},
        {path: described(facts_of(path, leaf)) for path, leaf in wanted.items()},
        classes(structure),
        classes(to_json(shape)),
    )
    made: dict[Hashable, tuple[str, Tensor]] = {}
    result = []
    for path, leaf in wanted.items():
        value = _leaf(file, found[path], leaf, location)
        tie = identity(leaf)
        if tie is not None:
            first, tied = made.setdefault(tie, (path, value))
            if value is not tied:
                _check_tied(first, tied, path, value)
            value = tied
        result.append(value)
    return unflatten(shape, result)


def _leaf(file: Opened, facts: Facts, leaf: Any, location: Device | None) -> Any:
    if "tensor" not in facts:
        return scalar(facts)
    device = location or ("cpu" if leaf.is_meta else leaf.device)
    value = tensor(facts, file.numbers(facts["tensor"]), torch.device(device))
    return value.requires_grad_(leaf.requires_grad)


def _check_tied(first: str, tied: Tensor, path: str, value: Tensor) -> None:
    if not same_bits(tied, value):
        raise StructureError(
            "leaves that are tied have one value",
            f"{first} and {path} are one tensor in like, and differ in the file",
            "clone one of them, as TrainState.create does",
        )


def _part(contents: Contents, at: str, where: str) -> tuple[Any, list[Facts]]:
    """The structure below the path `at`, and the facts of its leaves."""
    value, first, rest = contents.structure, 0, at
    while rest:
        children = named_children(value)
        for name, child in children:
            if rest == name or rest.startswith(f"{name}/"):
                value, rest = child, rest[len(name) + 1 :]
                break
            first += count_leaves(child)
        else:
            raise StructureError(
                "at= is the path of a part of the checkpoint",
                f"{at!r} is not in {where}, which has {[name for name, _ in children]} at {rest!r}",
                "give a path of containers joined by /",
            )
    return value, contents.leaves[first : first + count_leaves(value)]
