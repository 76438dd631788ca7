"""What a pure function does not take from its surroundings, and how it is run again in the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from funcloop._compat import differentiating, function_modes


def no_outer_graph() -> contextlib.AbstractContextManager[None]:
    """Results carry no autograd graph, unless a torch.func transform is differentiating.

    A pure step fed with live `nn.Parameter`s would otherwise chain the graphs of all steps. Inside
    `torch.func.grad` (meta-learning, implicit differentiation) everything stays differentiable.
    """
    return contextlib.nullcontext() if differentiating() else torch.no_grad()


def surroundings() -> Callable[[], contextlib.AbstractContextManager[object]]:
    """What decides here and now how torch's functions run, to be entered again later.

    A recomputation in a backward pass runs where autocast and the modes of the forward pass have
    ended. A mode with a method `again` is entered once more, with what it had to say at this point;
    so random calls draw the same numbers.
    """
    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    casts = [(k, torch.get_autocast_dtype(k), torch.is_autocast_enabled(k)) for k in kinds]
    modes = [mode.again() for mode in function_modes() if hasattr(mode, "again")]

    @contextlib.contextmanager
    def enter():
        with contextlib.ExitStack() as stack:
            for kind, dtype, enabled in casts:
                cast = torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
                stack.enter_context(cast)
            for mode in modes:
                stack.enter_context(mode.again())
            yield

    return enter
