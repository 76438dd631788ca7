"""What a compiled graph depends on: the structure of the arguments and a few facts of each leaf."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._pytree import Structure, flatten, paths_of


@dataclass(frozen=True)
class Static:
    """An argument that is a constant of the graph; a leaf."""

    value: Any


def as_leaves(args: Any) -> tuple[list[Any], Structure | str]:
    """The leaves of the arguments with Python numbers made 0-d tensors, and their structure.

    A float takes float64 where some tensor does, and torch's default dtype otherwise; so a learning
    rate is data, and another one does not re-trace.
    """
    leaves, structure = flatten(args)
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor) and type(leaf) in (int, float, complex):
            leaves[place] = as_tensor(leaf, leaves)
    return leaves, structure


def as_tensor(value: complex, leaves: Sequence[Any]) -> Tensor:
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    double = any(leaf.dtype in (torch.float64, torch.complex128) for leaf in tensors)
    device = tensors[0].device if tensors else None
    if type(value) is int:
        return torch.tensor(value, device=device)
    dtype = torch.float64 if double else torch.get_default_dtype()
    return torch.tensor(value, dtype=dtype.to_complex() if type(value) is complex else dtype).to(
        device
    )


class TensorSpec(NamedTuple):
    """What a graph depends on in a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class ConstantSpec(NamedTuple):
    """A leaf that is a constant of the graph."""

    kind: type
    value: Hashable


class Signature(NamedTuple):
    """The key under which a graph is kept."""

    structure: Structure | str
    leaves: tuple[TensorSpec | ConstantSpec, ...]
    ambient: Hashable


def signature(
    leaves: Sequence[Any], structure: Structure | str, dynamic: Sequence[int] = ()
) -> Signature:
    """The signature of a call; the leading dimension of the leaves at `dynamic` is -1 in it.

    Raises:
        ArgumentError: a leaf is neither a tensor nor hashable.
    """
    free = frozenset(dynamic)
    specs = tuple([_spec(leaf, place in free) for place, leaf in enumerate(leaves)])
    try:
        hash(specs)
    except TypeError:
        raise _unhashable(leaves, structure) from None
    return Signature(structure, specs, ambient())


def _spec(leaf: Any, free: bool) -> TensorSpec | ConstantSpec:
    if isinstance(leaf, Tensor):
        shape = (-1, *leaf.shape[1:]) if free else leaf.shape
        return TensorSpec(shape, leaf.stride(), leaf.dtype, leaf.device)
    return ConstantSpec(type(leaf), leaf)


def ambient() -> Hashable:
    """Settings outside the arguments that decide what an operator does."""
    defaults = torch.get_default_dtype(), torch.get_default_device()
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return *defaults, *_autocast("cpu"), *_autocast("cuda")
    return defaults


def _autocast(device: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _unhashable(leaves: Sequence[Any], structure: Structure | str) -> ArgumentError:
    for path, leaf in zip(paths_of(structure), leaves, strict=True):
        if isinstance(leaf, np.ndarray):
            return ArgumentError(
                "a jitted function takes tensors, numbers and hashable constants",
                f"argument {path} is a numpy array",
                "convert it with torch.from_numpy",
            )
        try:
            hash(leaf)
        except TypeError:
            return ArgumentError(
                "a jitted function takes tensors, numbers and hashable constants",
                f"argument {path} is a {type(leaf).__name__}",
                "pass a hashable value (a tuple, a frozenset), or close over it",
            )
    raise AssertionError("every leaf is hashable")
