"""Batch normalisation in training mode lets examples see each other, and is refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from funcloop._errors import UnsupportedError


def _functional(input, running_mean, running_var, weight=None, bias=None, training=False,
                momentum=0.1, eps=1e-5): ...  # fmt: skip


def _native(input, weight, bias, running_mean, running_var, training, momentum, eps,
            cudnn_enabled=True): ...  # fmt: skip


#: By function, one with its signature.
BATCH_NORMS: dict[Any, Callable[..., None]] = {
    F.batch_norm: _functional,
    torch.batch_norm: _native,
    torch.native_batch_norm: _native,
}


def refuse_training(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    path_of: Callable[[Any], str | None],
) -> None:
    """Raises UnsupportedError where this call would normalise over the batch.

    Args:
        func: One of `BATCH_NORMS`.
        args: Its arguments.
        kwargs: The same by keyword.
        path_of: The path of a parameter; None for another tensor.
    """
    given = inspect.signature(BATCH_NORMS[func]).bind(*args, **kwargs).arguments
    if not given.get("training", False):
        return
    path = path_of(given.get("weight"))
    raise UnsupportedError(
        "per-sample gradients need examples that do not depend on each other",
        f"batch normalisation in training mode in {_running_module(path)}",
        "replace it by GroupNorm, or freeze its statistics with "
        'train={"path.of.the.norm": False, "": True}',
    )


def _running_module(path: str | None) -> str:
    """Which module runs: by its parameter, or by the innermost module among the callers."""
    if path is not None:
        return f"module {path.rpartition('.')[0]!r}"
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            return f"a {type(owner).__name__}"
        frame = frame.f_back
    return "the loss function"
