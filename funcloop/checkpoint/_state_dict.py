"""A state_dict that another tool has saved, read without running anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from funcloop._errors import CheckpointError, StructureError, import_extra


def read_state_dict(path: str, entry: str) -> Mapping[str, Any]:
    """Tensors by name from a file of torch.save or safetensors; see `load_torch`.

    Raises:
        CheckpointError: the file cannot be read without running something.
        StructureError: there are no tensors at `entry`.
    """
    if path.endswith(".safetensors"):
        content = import_extra("safetensors.torch", "loop").load_file(path)
    else:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # rubbish read as a pickle fails in any way
            raise CheckpointError(
                "a file of weights holds tensors and plain containers, and nothing that runs",
                f"{path}: {_reason(error)}",
                "save its state_dict() alone, where you trust the file",
            ) from error
    for part in filter(None, entry.split("/")):
        below = _entry(content, part) if isinstance(content, Mapping) else None
        if below is None:
            raise StructureError("entry= leads to the state_dict", *_what_is_there(path, content))
        content = below
    if not isinstance(content, Mapping) or not any(isinstance(v, Tensor) for v in content.values()):
        raise StructureError("a state_dict is tensors by name", *_what_is_there(path, content))
    return content


def _entry(content: Mapping[str, Any], part: str) -> Any:
    """What stands under this key, or the names that begin with it, without it; None for neither."""
    if part in content:
        return content[part]
    start = f"{part}."
    return {n[len(start) :]: x for n, x in content.items() if n.startswith(start)} or None


def _reason(error: Exception) -> str:
    """The one line of torch's advice that says what was in the way."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if "error:" in line), lines[0]).strip()[:300]


def _what_is_there(path: str, content: Any) -> tuple[str, str]:
    there = f"the keys {list(content)[:20]}" if isinstance(content, Mapping) else f"{type(content)}"
    return f"{path} has {there}", 'say where it is, as in entry="state_dict"'
