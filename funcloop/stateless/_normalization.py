"""Batch and instance normalisation: their running statistics are written without a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from funcloop._compat import batch_levels
from funcloop._errors import UnsupportedError
from funcloop.stateless._writes import Function, Watcher

BatchNorm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def functional_batch_norm(guard: Watcher, func: Function, /, *args: Any, **kwargs: Any) -> Any:
    """`F.batch_norm`: writes the running statistics where `training`."""
    if args[5] if len(args) > 5 else kwargs.get("training", False):
        _note_statistics(guard, *_named(("input", "running_mean", "running_var"), args, kwargs))
    return guard.proceed(func, *args, **kwargs)


def batch_norm(guard: Watcher, func: Function, /, *args: Any, **kwargs: Any) -> Any:
    """`torch.batch_norm`: the same with other positions."""
    if args[5] if len(args) > 5 else kwargs["training"]:
        names = ("input", "weight", "bias", "running_mean", "running_var")
        input, _, _, *statistics = _named(names, args, kwargs)
        _note_statistics(guard, input, *statistics)
    return guard.proceed(func, *args, **kwargs)


def instance_norm(guard: Watcher, func: Function, /, *args: Any, **kwargs: Any) -> Any:
    """`F.instance_norm`: writes the running statistics where `use_input_stats`."""
    if args[5] if len(args) > 5 else kwargs.get("use_input_stats", True):
        _note_statistics(guard, *_named(("input", "running_mean", "running_var"), args, kwargs))
    return guard.proceed(func, *args, **kwargs)


def _named(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    return [args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names)]


def _note_statistics(guard: Watcher, input: Tensor, *statistics: Tensor | None) -> None:
    """Both statistics are about to be written.

    Raises:
        UnsupportedError: the members of a vmap, each with its own input, share them.
    """
    levels = batch_levels(input)
    for statistic in statistics:
        if statistic is None:
            continue
        guard.note_write(statistic)
        if levels and levels - batch_levels(statistic):
            raise UnsupportedError(
                "running statistics that the members of a vmap share cannot follow each of them",
                f"{guard.where()} normalises in training mode under vmap with unbatched buffers",
                "replace it by GroupNorm; or freeze its statistics, "
                'train={"path.of.the.norm": False, "": True}; '
                "or give every member its own buffers (vmap over stacked buffers)",
            )


def is_cumulative(module: nn.Module) -> TypeGuard[BatchNorm]:
    """Whether a module is torch's batch norm with `momentum=None` and statistics."""
    own = type(module).forward is nn.BatchNorm1d.forward  # which that of 2d and 3d is too
    return own and module.momentum is None and module.num_batches_tracked is not None


def cumulative_norm(norm: BatchNorm, input: Tensor) -> Tensor:
    """Batch norm whose statistics are the mean over all batches so far, in tensors throughout.

    torch's own forward makes a Python number of the count of batches, which neither vmap nor a
    tracer allows. The batch's statistics are taken by a call with momentum one.
    """
    norm._check_input_dim(input)
    mean, var, count = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert mean is not None and var is not None and count is not None  # noqa: PT018  # is_cumulative
    if not norm.training:
        return F.batch_norm(input, mean, var, norm.weight, norm.bias, eps=norm.eps)
    count.add_(1)
    share = 1 / count.to(mean.dtype)
    now = torch.zeros_like(mean), torch.ones_like(var)
    output = F.batch_norm(input, *now, norm.weight, norm.bias, True, 1.0, norm.eps)
    for statistic, batch in zip((mean, var), now, strict=True):
        statistic.mul_(1 - share).add_(share * batch)
    return output
