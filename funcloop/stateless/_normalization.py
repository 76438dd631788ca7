"""Batch and instance normalisation: their running statistics are written without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from funcloop._compat import batch_levels, in_functorch
from funcloop._errors import UnsupportedError

if TYPE_CHECKING:
    from funcloop.stateless._guard import Guard

_FUNCTIONAL = ("input", "running_mean", "running_var", "weight", "bias", "training")
_NATIVE = ("input", "weight", "bias", "running_mean", "running_var", "training")
_INSTANCE = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats")


def functional_batch_norm(
    guard: Guard, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`F.batch_norm`: writes the running statistics where `training`."""
    given = dict(zip(_FUNCTIONAL, args, strict=False)) | kwargs
    if given.get("training", False):
        _note_statistics(guard, given)
    return func(*args, **kwargs)


def batch_norm(
    guard: Guard, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`torch.batch_norm`: the same with other positions."""
    given = dict(zip(_NATIVE, args, strict=False)) | kwargs
    if given.get("training", False):
        _note_statistics(guard, given)
    return func(*args, **kwargs)


def instance_norm(
    guard: Guard, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`F.instance_norm`: writes the running statistics where `use_input_stats`."""
    given = dict(zip(_INSTANCE, args, strict=False)) | kwargs
    if given.get("use_input_stats", True):
        _note_statistics(guard, given)
    return func(*args, **kwargs)


def _note_statistics(guard: Guard, given: dict[str, Any]) -> None:
    """Both statistics are about to be written.

    Raises:
        UnsupportedError: the members of a vmap, each with its own input, share them.
    """
    for name in ("running_mean", "running_var"):
        statistic = given.get(name)
        if not isinstance(statistic, Tensor):
            continue
        guard.note_write(statistic)
        if in_functorch() and batch_levels(given["input"]) - batch_levels(statistic):
            raise UnsupportedError(
                "running statistics that the members of a vmap share cannot follow each of them",
                f"{guard.where()} normalises in training mode under vmap with unbatched buffers",
                "replace it by GroupNorm; or freeze its statistics, "
                'train={"path.of.the.norm": False, "": True}; '
                "or give every member its own buffers (vmap over stacked buffers)",
            )
