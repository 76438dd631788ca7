"""Rules for torch functions that write into an argument: the guard hears of it beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from funcloop._compat import lacks_rules, written_by
from funcloop._pytree import flatten

Function: TypeAlias = Callable[..., Any]
#: Called with the watcher, the function and its arguments in place of the function.
Rule: TypeAlias = Callable[..., Any]


class Watcher(Protocol):
    """The active guard, as rules know it."""

    def note_write(self, target: Any) -> None:
        """Allow or refuse a write into `target` that is about to happen."""
        ...

    def proceed(self, func: Function, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function; random numbers come from the key."""
        ...

    def rebind(self, old: Tensor, new: Tensor) -> None:
        """Let the module hold `new` wherever it holds the parameter `old`, until the call ends."""
        ...

    def where(self) -> str:
        """The innermost module that is running, for a message."""
        ...

    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> Any: ...


def note_first(guard: Watcher, func: Function, /, *args: Any, **kwargs: Any) -> Any:
    """The rule of a function that writes its first argument, or every tensor in a first list."""
    target = args[0] if args else next(iter(kwargs.values()), None)
    if isinstance(target, Tensor):
        guard.note_write(target)
    else:
        for each in flatten(target)[0]:
            guard.note_write(each)
    return guard.proceed(func, *args, **kwargs)


def note_every(guard: Watcher, func: Function, /, *args: Any, **kwargs: Any) -> Any:
    """The rule of a function of which torch does not say what it writes, except the first."""
    for target in flatten((args[1:], kwargs))[0]:
        guard.note_write(target)
    return guard.proceed(func, *args, **kwargs)


def note_operator(guard: Watcher, func: Function, /, *args: Any, **kwargs: Any) -> Any:
    """The rule of an operator of `torch.ops`, whose schema says what it writes."""
    for target in written_by(func, args, kwargs):
        guard.note_write(target)
    return guard.proceed(func, *args, **kwargs)


def into_out(guard: Watcher, func: Function, /, *args: Any, out: Any, **kwargs: Any) -> Any:
    """The rule of any function that is given `out=`, which has no rule for vmap and forward mode.

    There the result is computed first and then copied; as torch has it, without a derivative.
    """
    targets = flatten(out)[0]
    for target in targets:
        guard.note_write(target)
    inputs = [x for x in (*args, *targets) if isinstance(x, Tensor)]
    if not isinstance(out, Tensor) or not lacks_rules(inputs):
        return guard.proceed(func, *args, out=out, **kwargs)
    return out.copy_(guard.proceed(func, *args, **kwargs).detach())


def writers() -> set[Function]:
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
