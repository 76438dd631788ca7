"""Rules for torch functions that write into an argument: the guard hears of it beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from funcloop._compat import written_by
from funcloop._pytree import flatten

if TYPE_CHECKING:
    from funcloop.stateless._guard import Guard

#: `(guard, function, args, kwargs) -> result`, in place of the function itself.
Rule: TypeAlias = Callable[["Guard", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def first_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return args[0] if args else next(iter(kwargs.values()), None)


def note_first(
    guard: Guard, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The rule of a function that writes its first argument, or every tensor in a first list."""
    for target in flatten(first_argument(args, kwargs))[0]:
        guard.note_write(target)
    return func(*args, **kwargs)


def note_every(
    guard: Guard, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The rule of a function of which torch does not say what it writes, except the first."""
    for target in flatten((args[1:], kwargs))[0]:
        guard.note_write(target)
    return func(*args, **kwargs)


def note_operator(
    guard: Guard, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The rule of an operator of `torch.ops` whose schema says what it writes."""
    for target in written_by(func, args, kwargs):
        guard.note_write(target)
    return func(*args, **kwargs)


def writers() -> set[Callable[..., Any]]:
    """Every function that torch names as one in place: `add_`, `__setitem__`, `F.relu_`, ..."""
    named = {
        getattr(space, name)
        for space in (torch, F, nn.init, torch.Tensor)
        for name in dir(space)
        if name.endswith("_") and not name.endswith("__")
    }
    operators = {
        getattr(torch.Tensor, name)
        for name in dir(torch.Tensor)
        if name.startswith("__i") and hasattr(int, "__" + name[3:])
    }
    return {f for f in named | operators if callable(f)} | {torch.Tensor.__setitem__}
