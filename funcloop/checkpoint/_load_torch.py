"""Weights that other tools have saved: a `state_dict` in a file becomes params and buffers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from os import PathLike, fspath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._errors import ArgumentError, CheckpointError, StructureError
from funcloop._pytree import flatten, paths_of, unflatten
from funcloop._types import Buffers, Params
from funcloop.checkpoint._diff import compared, listed
from funcloop.checkpoint._file import unique
from funcloop.checkpoint._leaf import described, facts_of, identity, require_plain, same_bits
from funcloop.checkpoint._prefixes import without_wrappers
from funcloop.checkpoint._restore import Device
from funcloop.checkpoint._state_dict import read_state_dict
from funcloop.stateless._pattern import Pattern, as_patterns, matches


class Loaded(NamedTuple):
    """What `load_torch` returns; `print` shows it as a report.

    Attributes:
        params: The params with the values of the file.
        buffers: The buffers with the values of the file.
        loaded: For each name that took its value from the file, the name there.
        kept: Names that kept the value they had.
        dropped: Names of the file that were left out.
        tied: Names of the file that are another name of a tensor that was loaded.
    """

    params: Params
    buffers: Buffers
    loaded: dict[str, str]
    kept: list[str]
    dropped: list[str]
    tied: list[str]

    def __str__(self) -> str:
        renamed = {new: old for new, old in self.loaded.items() if new != old}
        example = next((f", such as {old} to {new}" for new, old in renamed.items()), "")
        lines = [f"loaded {len(self.loaded)} tensors ({len(renamed)} renamed{example})"]
        for what in ("kept", "dropped", "tied"):
            names = getattr(self, what)
            if names:
                lines.append(f"{what} {len(names)}: {', '.join(names)}")
        return "\n".join(lines)


def load_torch(
    path: str | PathLike[str],
    params: Params,
    buffers: Buffers = (),
    *,
    entry: str = "",
    keep: Pattern = (),
    drop: Pattern = (),
    map_location: Device | None = None,
) -> Loaded:
    """Params and buffers with the values of a `state_dict` in a file.

    Every name of the params and buffers has to be in the file, and every name of the file among
    them, with equal shapes and dtypes; what is meant to differ is said by `keep` and `drop`, and
    told in the result. Prefixes that wrappers have left (`module.`, `_orig_mod.`, in any order and
    at any depth) are looked through. A second name of a tied tensor is one name too many in the
    file, and is passed over if it is the same tensor there.

    Nothing is run: files of `torch.save` are read with `weights_only=True`, others are safetensors
    files (`*.safetensors`).

    Args:
        path: The file.
        params: Where the values go, from `model.init()`; names are those of the module.
        buffers: The same for its buffers. A buffer that the module does not save
            (`persistent=False`) is not in the file: `keep` it.
        entry: Where the state_dict is in the file, e.g. `"state_dict"` or `"model/ema"`. A part may
            also be what names begin with: `"state_dict/backbone"` takes those of `backbone.`, bare.
        keep: Names, or patterns of names, that keep the value they have, such as a new head; what
            the file has under these names is left out. A module's name stands for all below it.
        drop: Names of the file that are left out.
        map_location: The device of what is loaded, instead of that of the params.

    Raises:
        StructureError: names, shapes or dtypes differ; each is listed. Or `entry` is not there.
        CheckpointError: the file holds something else than tensors, or more than weights.
        ArgumentError: a pattern matches nothing.
        FileNotFoundError: there is no file.

    >>> import tempfile, torch
    >>> path = tempfile.mkdtemp() + "/weights.pt"
    >>> file = {"module.body.weight": torch.ones(2), "module.head.weight": torch.zeros(3)}
    >>> torch.save(file, path)
    >>> params = {"body.weight": torch.zeros(2), "head.weight": torch.ones(5)}
    >>> loaded = load_torch(path, params, keep="head")
    >>> loaded.params
    {'body.weight': tensor([1., 1.]), 'head.weight': tensor([1., 1., 1., 1., 1.])}
    >>> print(loaded)
    loaded 1 tensors (1 renamed, such as module.body.weight to body.weight)
    kept 1: head.weight
    dropped 1: module.head.weight
    """
    (leaves, structure), (more, buffers_structure) = flatten(params), flatten(buffers)
    paths = [
        path.replace("/", ".") for path in (*paths_of(structure), *paths_of(buffers_structure))
    ]
    target = dict(zip(unique(paths, "params and buffers"), (*leaves, *more), strict=True))
    kept = _chosen("keep", keep, target)
    file = read_state_dict(fspath(path), entry)
    dropped = _chosen("drop", drop, file)
    names = without_wrappers([n for n in file if n not in dropped], target)
    dropped += [n for n, new in names.items() if _matches_any(new, keep)]
    found = {new: n for n, new in names.items() if n not in dropped}
    wanted = {name: leaf for name, leaf in target.items() if name not in kept}
    tied = _second_names(file, found, wanted)
    found = {new: n for new, n in found.items() if n not in tied}
    _refuse_differences(file, found, wanted)
    values = _values(file, found, wanted, map_location)
    result = [values.get(name, leaf) for name, leaf in target.items()]
    return Loaded(
        unflatten(structure, result[: len(leaves)]),
        unflatten(buffers_structure, result[len(leaves) :]),
        {name: found[name] for name in wanted},
        kept,
        dropped,
        tied,
    )


def _chosen(what: str, patterns: Pattern, names: Iterable[str]) -> list[str]:
    names = list(names)
    for pattern in as_patterns(patterns):
        if not any(matches(name, pattern) for name in names):
            raise ArgumentError(
                f"{what}= names something that is there",
                f"{pattern!r} matches none of {len(names)} names, such as {names[:3]}",
                "correct the pattern",
            )
    return [name for name in names if _matches_any(name, patterns)]


def _matches_any(name: str, patterns: Pattern) -> bool:
    return any(matches(name, pattern) for pattern in as_patterns(patterns))


def _second_names(
    file: Mapping[str, Any], found: Mapping[str, str], wanted: Mapping[str, Any]
) -> list[str]:
    """Names of the file that nobody asks for, of tensors that are loaded under another name."""
    loaded = {identity(file[name]) for new, name in found.items() if new in wanted} - {None}
    return [
        name for new, name in found.items() if new not in wanted and identity(file[name]) in loaded
    ]


def _refuse_differences(
    file: Mapping[str, Any], found: Mapping[str, str], wanted: Mapping[str, Any]
) -> None:
    for name in found.values():
        if not isinstance(file[name], Tensor):
            raise CheckpointError(
                "a state_dict is tensors by name",
                f"{name} is a {type(file[name]).__qualname__}",
                f"drop={name!r} leaves it out",
            )
        require_plain(name, file[name])
    lines = compared(
        {new: described(facts_of(new, file[name])) for new, name in found.items()},
        {name: described(facts_of(name, leaf)) for name, leaf in wanted.items()},
    )
    if lines:
        raise StructureError(
            "weights are loaded by name, all of them",
            listed(lines),
            "give buffers too, leave out with keep= and drop=, or cast the params to the file's "
            "dtype with tree.cast first and back afterwards",
        )


def _values(
    file: Mapping[str, Tensor],
    found: Mapping[str, str],
    wanted: Mapping[str, Tensor],
    location: Device | None,
) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    tied: dict[Hashable, str] = {}
    for name, leaf in wanted.items():
        first = tied.setdefault(identity(leaf) or name, name)
        if first != name:
            if not same_bits(file[found[first]], file[found[name]]):
                raise StructureError(
                    "leaves that are tied have one value",
                    f"{first} and {name} are one tensor in params, and differ in the file",
                    "clone one of them",
                )
            values[name] = values[first]
            continue
        device = location or ("cpu" if leaf.is_meta else leaf.device)
        with torch.no_grad():
            value = torch.empty_like(leaf, device=device, requires_grad=False)
            values[name] = value.copy_(file[found[name]]).requires_grad_(leaf.requires_grad)
    return values
