"""A tree as one safetensors file: the numbers as tensors, everything else as JSON in its header.

One file rather than a folder, since a rename then replaces everything at once. The format is that
of https://huggingface.co/docs/safetensors (length of the header, header, numbers), and any reader
of it can read these files: tensors stand under the paths of their leaves.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any, NamedTuple

from torch import Tensor

from funcloop._atomic import replaced
from funcloop._compat import transforming
from funcloop._errors import CheckpointError, StructureError, UnsupportedError, import_extra
from funcloop._pytree import PyTree, flatten, paths_of
from funcloop._structure_json import to_json
from funcloop.checkpoint._leaf import (
    Facts,
    dtype_name,
    identity,
    raw,
    require_plain,
    scalar_facts,
    stored,
    tensor_facts,
)

_VERSION = 1
_KEY = "funcloop"
#: What the readers of the format accept, in bytes.
_LONGEST_HEADER = 100_000_000
_RESERVED = ("__metadata__", "")
_CODES = {
    **{f"float{n}": f"F{n}" for n in (64, 32, 16)},
    **{f"int{n}": f"I{n}" for n in (64, 32, 16, 8)},
    **{f"uint{n}": f"U{n}" for n in (64, 32, 16, 8)},
    "bfloat16": "BF16",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
#: Complex numbers are stored as pairs of these.
_PARTS = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}

Notes = Mapping[str, Any]


class Contents(NamedTuple):
    """What a file says about its tree, without the numbers.

    Attributes:
        structure: JSON of the containers.
        leaves: Facts of each leaf, from left to right.
        notes: Whatever the writer noted beside the tree.
    """

    structure: Any
    leaves: list[Facts]
    notes: Notes


def write(path: str | PathLike[str], tree: PyTree, notes: Notes) -> None:
    """Write a tree; see `save`."""
    import_extra("safetensors", "loop")  # missed before the first save, not when it is needed
    if transforming():
        raise UnsupportedError(
            "only values are saved", "a save inside a transform or a trace", "save its result"
        )
    leaves, structure = flatten(tree)
    facts, tensors = _take_apart(leaves, unique(paths_of(structure), "the tree"))
    manifest = {
        "version": _VERSION,
        "structure": to_json(structure),
        "leaves": facts,
        "notes": dict(notes),
    }
    header = _header(manifest, tensors)
    with replaced(path) as temporary, temporary.open("wb") as file:
        # Written here and not by the library: it renames a temporary file of its own, which a kill
        # would leave behind, and wants all leaves on the CPU at once.
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for leaf in tensors.values():
            file.write(raw(stored(leaf)).numpy().data)


def unique(paths: list[str], where: str) -> list[str]:
    """The paths, if no two leaves have the same.

    Raises:
        StructureError: two do, such as those of keys `1` and `"1"`.
    """
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise StructureError(
            "leaves are saved and found by their paths",
            f"two leaves of {where} have the path {twice!r}",
            "rename a key",
        )
    return paths


def _take_apart(leaves: list[Any], paths: list[str]) -> tuple[list[Facts], dict[str, Tensor]]:
    facts: list[Facts] = []
    tensors: dict[str, Tensor] = {}
    names: dict[Hashable, str] = {}
    for number, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
        if not isinstance(leaf, Tensor):
            facts.append(scalar_facts(path, leaf))
            continue
        leaf = require_plain(path, leaf)
        name = f"leaf {number}" if path in _RESERVED else path
        tie = identity(leaf)
        if tie is not None:
            name = names.setdefault(tie, name)
        tensors.setdefault(name, leaf)
        facts.append(tensor_facts(name, leaf))
    return facts, tensors


def _header(manifest: Any, tensors: Mapping[str, Tensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(manifest)}}
    end = 0
    for name, leaf in tensors.items():
        dtype, shape = dtype_name(leaf), list(leaf.shape)
        if dtype in _PARTS:
            dtype, shape = _PARTS[dtype], [*shape, 2]
        if dtype not in _CODES:
            raise CheckpointError(
                "a checkpoint holds the dtypes of safetensors",
                f"{name} is {dtype}",
                "convert it, or save its bytes as uint8",
            )
        start, end = end, end + leaf.numel() * leaf.element_size()
        entries[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    if len(text) > _LONGEST_HEADER:
        raise CheckpointError(
            "what is not a tensor fits into a header of 100 MB",
            f"{len(tensors)} tensors and {len(text) / 1e6:.0f} MB of JSON",
            "keep long texts and lists of numbers in tensors",
        )
    return text + b" " * (-len(text) % 8)


class Opened(NamedTuple):
    """An open file: its contents, and the numbers of a tensor by name."""

    contents: Contents
    numbers: Any


@contextmanager
def opened(path: str | PathLike[str]) -> Iterator[Opened]:
    """Open what `write` wrote.

    Raises:
        CheckpointError: it is something else, or of a newer version.
        FileNotFoundError: there is no file.
    """
    safetensors = import_extra("safetensors", "loop")
    try:
        file = safetensors.safe_open(fspath(path), framework="pt", device="cpu")
    except safetensors.SafetensorError as error:
        raise _no_checkpoint(path, f"no safetensors file ({error})") from error
    with file:
        metadata = file.metadata() or {}
        if _KEY not in metadata:
            raise _no_checkpoint(path, "a safetensors file of another writer")
        manifest = json.loads(metadata[_KEY])
        if manifest["version"] > _VERSION:
            raise CheckpointError(
                "a checkpoint is read by the version that wrote it, or a later one",
                f"{fspath(path)} has format {manifest['version']}, known is {_VERSION}",
                "upgrade funcloop",
            )
        contents = Contents(manifest["structure"], manifest["leaves"], manifest["notes"])
        yield Opened(contents, file.get_tensor)


def _no_checkpoint(path: str | PathLike[str], what: str) -> CheckpointError:
    return CheckpointError(
        "restore reads what save wrote",
        f"{fspath(path)} is {what}",
        "read files of other writers with load_torch",
    )
