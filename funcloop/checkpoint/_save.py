"""Any tree into one file."""

from __future__ import annotations

from os import PathLike

from funcloop._pytree import PyTree
from funcloop.checkpoint._file import write


def save(path: str | PathLike[str], tree: PyTree) -> None:
    """Write a tree to `path`: wholly, or not at all.

    The file is a safetensors file: tensors under the paths of their leaves, and containers, Python
    numbers and strings as JSON in its header. Nothing is pickled, so reading it runs no code. It
    is written beside `path`, brought to disk, and renamed: whatever kills the process, `path` is
    the old file or the new one. What a killed save left in the folder, the next one removes.

    Values, dtypes, shapes and memory layouts come back as they were, in any dtype of safetensors
    and in complex ones; a leaf that is a view or is expanded is written as the numbers that it
    shows. Leaves that are one and the same tensor are written once and stay one.

    Args:
        path: The file; its folder exists.
        tree: Any tree of dense tensors on any device, and of bools, ints, floats, complex numbers
            and strings.

    Raises:
        CheckpointError: a leaf is something else, sparse, quantized or of a subclass.
        StructureError: two leaves have the same path, or a dict has other keys than strings and
            ints.
        UnsupportedError: inside a transform or a trace.
        OSError: the disk is full, or the folder is missing; the old file is still there.
        MissingExtraError: safetensors is not installed.

    >>> import tempfile, torch
    >>> from funcloop.checkpoint import restore
    >>> path = tempfile.mkdtemp() + "/state.safetensors"
    >>> save(path, {"w": torch.tensor([1.0, 2.0]), "epoch": 3})
    >>> restore(path)
    {'w': tensor([1., 2.]), 'epoch': 3}
    """
    write(path, tree, {})
