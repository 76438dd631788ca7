"""What torch raises where a forward cannot be transformed, said as rule, place and remedy."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import NamedTuple

from torch import nn

from funcloop._compat import transforming, vmapping
from funcloop._errors import FuncloopError, UnsupportedError


class Reason(NamedTuple):
    """A part of torch's message, and what it means."""

    sign: str
    rule: str
    remedy: str


_LOOK = (
    "vmap runs all members at once, so Python cannot look at the value of one",
    "keep it a tensor, write a branch as torch.where or torch.cond, or loop over the members",
)
_WRITE = (
    "a tensor that the members of a vmap share cannot be written with a value of each",
    "write out of place; or, for a buffer, give every member its own (vmap over stacked buffers), "
    "or freeze it with train=",
)
_UNDER_VMAP = (
    Reason("calling .item() on a Tensor", *_LOOK),
    Reason("data-dependent control flow", *_LOOK),
    Reason("vmap: inplace arithmetic", *_WRITE),
    Reason("doesn't match the broadcast shape", *_WRITE),
    Reason(
        "Batching rule not implemented",
        "vmap needs a batching rule for every operator",
        "write it with other operators, or loop over the members",
    ),
    Reason(
        "dynamic shape",
        "vmap needs shapes that do not depend on values",
        "write it with a mask and torch.where, or loop over the members",
    ),
)
_ANYWHERE = (
    Reason(
        "saved tensor hooks",
        "torch.func differentiates without saved-tensor hooks",
        "leave out save_on_cpu and other hooks of that kind",
    ),
    Reason(
        "setup_context",
        "torch.func needs an autograd.Function that is split into forward and setup_context",
        "write forward(x) and setup_context(ctx, inputs, output), with generate_vmap_rule = True",
    ),
)


def explain(error: BaseException, names: dict[int, str]) -> FuncloopError | None:
    """The refusal that says what torch's error means, or None where it means itself.

    Args:
        error: What the forward raised.
        names: Module paths by the id of the module.

    >>> explain(ValueError("not about transforms"), {}) is None
    True
    """
    if isinstance(error, FuncloopError) or not transforming():
        return None
    message = str(error)
    for reason in (*_ANYWHERE, *(_UNDER_VMAP if vmapping() else ())):
        if reason.sign in message:
            return UnsupportedError(reason.rule, _place(error, names), reason.remedy)
    return None


def _place(error: BaseException, names: dict[int, str]) -> str:
    """The user's own line that raised, or else torch's, and the innermost module around it."""
    module, own, torchs = "", "", "a line that left no frame"
    for frame, number in _frames(error.__traceback__):
        module = module_of(frame, names) or module
        package = frame.f_globals.get("__name__", "")
        if package.startswith("torch.nn."):
            torchs = _line(frame, number)
        elif package.split(".")[0] not in ("torch", "funcloop"):
            own = _line(frame, number)
    line = own or torchs
    return f"{line} in {module}" if module else line


def _line(frame: FrameType, number: int) -> str:
    file = frame.f_code.co_filename
    return f"{file}:{number} `{linecache.getline(file, number).strip()}`"


def module_of(frame: FrameType, names: dict[int, str]) -> str:
    """The module whose method this frame runs, or nothing."""
    owner = frame.f_locals.get("self")
    if isinstance(owner, nn.Module) and id(owner) in names:
        return f"{type(owner).__name__} {names[id(owner)]!r}"
    return ""


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
