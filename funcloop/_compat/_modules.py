"""What torch keeps around a module or a block: checkpoints, caches, the compiled wrapper."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.utils.parametrize as torch_parametrize
import torch.utils.checkpoint as torch_checkpoint


class plain_modules:
    """Inside: checkpointed blocks run as plain calls, and no parametrization comes from a cache.

    Why private: a checkpointed block recomputes itself during backward, when the module has its own
    tensors again, and it needs saved-tensor hooks, which torch.func.grad forbids; functions import
    `checkpoint` by name, so what it calls is replaced while any pure call runs. A parametrization
    cache that stands open outside holds the values of other parameters. Checked on torch 2.13.0.
    """

    _lock = threading.Lock()
    _depth = 0
    _thread = threading.local()  # its `depth`: how many pure calls this thread is in
    _generator = staticmethod(torch_checkpoint._checkpoint_without_reentrant_generator)
    _function = torch_checkpoint.CheckpointFunction

    def __enter__(self) -> None:
        kind = plain_modules
        kind._thread.depth = kind.depth() + 1
        with kind._lock:
            kind._depth += 1
            torch_checkpoint._checkpoint_without_reentrant_generator = _nothing_around
            torch_checkpoint.CheckpointFunction = _PlainCall  # type: ignore[misc]  # only `apply`
        self._cache = torch_parametrize._cache
        torch_parametrize._cache = {}

    def __exit__(self, *exception: object) -> None:
        kind = plain_modules
        torch_parametrize._cache = self._cache
        kind._thread.depth -= 1
        with kind._lock:
            kind._depth -= 1
            if not kind._depth:
                torch_checkpoint._checkpoint_without_reentrant_generator = kind._generator
                torch_checkpoint.CheckpointFunction = kind._function  # type: ignore[misc]

    @classmethod
    def depth(cls) -> int:
        """How many pure calls this thread is in."""
        return getattr(cls._thread, "depth", 0)


def _nothing_around(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Takes the place of the generator that checkpoint steps before and after the block."""
    yield


class _PlainCall:
    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def runs_again() -> bool:
    """Whether we are in a block of torch.utils.checkpoint, whose backward pass will call it again.

    Why private: the blocks leave two traces, their saved-tensor hooks (use_reentrant=False) and the
    frame of their autograd Function (use_reentrant=True).
    """
    if torch.compiler.is_compiling() or plain_modules.depth():
        return False  # the block becomes part of a graph, or of a pure call, and is called once
    autograd = torch._C._autograd  # type: ignore[attr-defined]  # the stubs lack it
    hooks = autograd._top_saved_tensors_default_hooks(False)
    if hooks and torch.is_grad_enabled() and hooks[0].__module__ == torch_checkpoint.__name__:
        return True
    frame = sys._getframe()
    while frame is not None:
        ours = frame.f_globals.get("__name__") == torch_checkpoint.__name__
        if ours and frame.f_code.co_name in ("forward", "backward"):
            return True
        frame = frame.f_back
    return False


def compiled_original(module: torch.nn.Module) -> torch.nn.Module | None:
    """The module inside a `torch.compile`d one, or None.

    Why private: the wrapper's class has no public name. Where Dynamo was never imported there are
    no compiled modules, and importing it here would cost a second.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None or not isinstance(module, frames.OptimizedModule):
        return None
    return module._modules["_orig_mod"]
