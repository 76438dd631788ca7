"""Donated tensors: matched with outputs, checked for aliases, and unusable afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from funcloop._compat import inner_tensors, is_wrapper
from funcloop._errors import ArgumentError, DonationError
from funcloop._pytree import Structure, flatten, open_node, paths_of

_PLAIN = (Tensor, torch.nn.Parameter)


class Donated(Tensor):
    """What a donated tensor becomes: any use of it raises a DonationError."""

    _rule = "a donated tensor is gone"
    _value = "of a tensor that a jitted function has overwritten"
    _remedy = "use the state that the call returned, or jit without donate="

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Any = None,
    ) -> Any:
        """Refuse every operation."""
        operation = getattr(func, "__name__", func)
        raise DonationError(cls._rule, f"{operation} {cls._value}", cls._remedy)

    def __repr__(self, **_: Any) -> str:
        return "<donated tensor>"


class Lost(Donated):
    """What a donated tensor becomes when the call that took it failed half-way."""

    _rule = "a failed call may have overwritten a part of what it was given"
    _value = "of a tensor donated to a call that raised"
    _remedy = "start again from a checkpoint, or jit without donate="


def spend(tensors: Iterable[Tensor], kind: type[Donated]) -> None:
    """Make these tensors unusable; their storage lives on in whatever shares it."""
    for tensor in tensors:
        wraps = type(tensor) not in _PLAIN and is_wrapper(tensor)
        tensor.__class__ = _wrapper_kind(type(tensor), kind) if wraps else kind


@functools.cache
def _wrapper_kind(wrapper: type[Tensor], kind: type[Donated]) -> type[Tensor]:
    """What a wrapper becomes: an instance may only take on a class of its own layout."""
    refuse = {"__torch_function__": kind.__torch_function__, "__repr__": kind.__repr__}
    return type(f"{kind.__name__}{wrapper.__name__}", (wrapper,), {"__slots__": (), **refuse})


def fresh_alias(tensor: Tensor) -> Tensor:
    """Another tensor on the same storage."""
    return tensor.detach()


def check_unaliased(donated: Sequence[Tensor], others: Sequence[Any], paths: Sequence[str]) -> None:
    """Refuse donated tensors that share storage with each other or with another argument.

    Raises:
        DonationError: they do.
    """
    owner: dict[int, str] = {}
    for tensor, path in zip(donated, paths, strict=True):
        for storage in _storages(tensor):
            if storage and storage in owner:
                raise DonationError(
                    "a tensor is donated once",
                    f"{owner[storage]} and {path} share their storage",
                    "clone one of them (TrainState.create does)",
                )
            owner[storage] = path
    for tensor in others:
        for storage in _storages(tensor):
            if storage and storage in owner:
                raise DonationError(
                    "a donated tensor is no other argument",
                    f"{owner[storage]} shares its storage with an argument that is not donated",
                    "clone one of them",
                )


def _storages(tensor: Tensor) -> list[int]:
    """The addresses of a tensor's memory; a wrapper (DTensor) has that of what is inside."""
    if type(tensor) in _PLAIN or not is_wrapper(tensor):
        return [tensor.untyped_storage().data_ptr()]
    return [storage for inner in inner_tensors(tensor) for storage in _storages(inner)]


def match_arguments(
    args: Sequence[Any], donate: Sequence[int], output: Any
) -> list[tuple[int, int]]:
    """Pairs (leaf of the arguments, leaf of the output) of all donated arguments.

    Raises:
        ArgumentError: there is no such argument.
        DonationError: no output can take the place of one.
    """
    starts = [0]
    for arg in args:
        starts.append(starts[-1] + len(flatten(arg)[0]))
    pairs: list[tuple[int, int]] = []
    for number in donate:
        if number >= len(args):
            raise ArgumentError(
                "donate= counts the positional arguments",
                f"argument {number} of a call with {len(args)}",
                "pass the donated argument by position",
            )
        found = match_outputs(args[number], output, {o for _, o in pairs})
        pairs += [(starts[number] + i, o) for i, o in found]
    return pairs


def match_outputs(donated: Any, output: Any, taken: set[int]) -> list[tuple[int, int]]:
    """Pairs (leaf of `donated`, leaf of `output`): the first subtree of the output that fits.

    Args:
        donated: One donated argument, with tensors as leaves.
        output: What the function returned for it.
        taken: Leaves of the output that another donated argument has.

    Raises:
        DonationError: no subtree of the output has its structure, shapes and dtypes.
    """
    leaves, structure = flatten(donated)
    want = _facts(leaves)
    for start, found, subtree in _subtrees(output, 0):
        if found == structure and start not in taken and _facts(flatten(subtree)[0]) == want:
            return [(i, start + i) for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    raise DonationError(
        "a donated argument is overwritten by an output of the same structure",
        f"no output has the structure, shapes and dtypes of {paths_of(structure)[:4]}...",
        "return the new value of what is donated, or donate something else",
    )


def _facts(leaves: Sequence[Any]) -> list[tuple[torch.Size, torch.dtype] | None]:
    return [(x.shape, x.dtype) if isinstance(x, Tensor) else None for x in leaves]


def _subtrees(tree: Any, start: int) -> Iterable[tuple[int, Structure | str, Any]]:
    """Every subtree with its structure and the number of leaves before it, outermost first."""
    leaves, structure = flatten(tree)
    yield start, structure, tree
    node = None if isinstance(tree, Tensor) else open_node(tree)
    if node is not None and len(leaves) > 0:
        for child in node.children:
            yield from _subtrees(child, start)
            start += len(flatten(child)[0])
