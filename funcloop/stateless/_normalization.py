"""Batch and instance normalisation: their running statistics are written without a trace."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from funcloop._compat import batch_levels
from funcloop._errors import UnsupportedError
from funcloop.stateless._writes import Function, Watcher


def functional_batch_norm(
    guard: Watcher,
    func: Function,
    /,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """`F.batch_norm`: writes the running statistics where `training`."""
    if training:
        _note_statistics(guard, input, running_mean, running_var)
    return guard.proceed(
        func, input, running_mean, running_var, weight, bias, training, *rest, **options
    )


def batch_norm(
    guard: Watcher,
    func: Function,
    /,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """`torch.batch_norm`: the same with other positions."""
    if training:
        _note_statistics(guard, input, running_mean, running_var)
    return guard.proceed(
        func, input, weight, bias, running_mean, running_var, training, *rest, **options
    )


def instance_norm(
    guard: Watcher,
    func: Function,
    /,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """`F.instance_norm`: writes the running statistics where `use_input_stats`."""
    if use_input_stats:
        _note_statistics(guard, input, running_mean, running_var)
    return guard.proceed(
        func, input, running_mean, running_var, weight, bias, use_input_stats, *rest, **options
    )


def _note_statistics(guard: Watcher, input: Tensor, *statistics: Tensor | None) -> None:
    """Both statistics are about to be written.

    Raises:
        UnsupportedError: the members of a vmap, each with its own input, share them.
    """
    for statistic in statistics:
        if statistic is None:
            continue
        guard.note_write(statistic)
        if batch_levels(input) - batch_levels(statistic):
            raise UnsupportedError(
                "running statistics that the members of a vmap share cannot follow each of them",
                f"{guard.where()} normalises in training mode under vmap with unbatched buffers",
                "replace it by GroupNorm; or freeze its statistics, "
                'train={"path.of.the.norm": False, "": True}; '
                "or give every member its own buffers (vmap over stacked buffers)",
            )
