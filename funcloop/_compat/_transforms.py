"""Which torch.func transforms, tracers and modes are running around us."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch._C._functorch as torch_functorch
from torch import Tensor
from torch.utils._device import DeviceContext

from funcloop._compat._wrappers import batch_levels

_DIFFERENTIATING = (torch_functorch.TransformType.Grad, torch_functorch.TransformType.Jvp)


def differentiating() -> bool:
    """Whether a torch.func transform that differentiates (grad, vjp, jvp) is running around us.

    Why private: torch.func has no public question for this, and a pure function has to know it. At
    top level the graph of plain autograd is cut (a step must not chain the graphs of all steps);
    inside `torch.func.grad` nothing may be cut, or second derivatives are silently lost.
    """
    stack = torch_functorch.get_interpreter_stack()
    return stack is not None and any(level.key() in _DIFFERENTIATING for level in stack)


def transforming() -> bool:
    """Whether a torch.func transform, a tracer or a torch function mode is running around us.

    Why private: torch.func has no public question for this, nor have `make_fx` and the stack of
    modes. A compiled function called inside any of them has to step aside and run as plain Python:
    its graph would hide what they have to see, or keep what they said (a route's key) for ever.
    """
    return (
        torch_functorch.peek_interpreter_stack() is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
        or torch.compiler.is_compiling()
        or any(not isinstance(mode, DeviceContext) for mode in function_modes())
    )


def function_modes() -> Iterator[Any]:
    """The torch function modes around us, from the outside inwards.

    Why private: torch has no public way to look at the stack of modes.
    """
    for place in range(torch._C._len_torch_function_stack()):
        yield torch._C._get_function_stack_at(place)


def transform_depth() -> int:
    """How many torch.func transforms are running around us.

    Why private: torch.func has no public question for this.
    """
    return len(torch_functorch.get_interpreter_stack() or ())


def vmapping() -> bool:
    """Whether a vmap is running around us.

    Why private: torch.func has no public question for this.
    """
    stack = torch_functorch.get_interpreter_stack() or ()
    return any(level.key() == torch_functorch.TransformType.Vmap for level in stack)


def lacks_rules(tensors: Iterable[Tensor]) -> bool:
    """Whether a fused operator over these tensors may have no rule for the transforms around us.

    So it is where a tensor is batched by vmap, under forward mode, and under a gradient of a
    gradient: fused kernels come with a first backward at most.

    Why private: torch.func has no public question for what is running around us.
    """
    stack = torch_functorch.get_interpreter_stack()
    if stack is None:
        return False
    kinds = [level.key() for level in stack]
    kind = torch_functorch.TransformType
    deep = kind.Jvp in kinds or kinds.count(kind.Grad) > 1
    return deep or any(batch_levels(tensor) for tensor in tensors)


def forward_levels() -> int:
    """How many torch.func.jvp transforms are running around us.

    Why private: torch.func has no public question for this. In two of them, one inside the other,
    the `jvp` of a custom autograd.Function silently gives zero (torch 2.13).
    """
    stack = torch_functorch.get_interpreter_stack() or []
    return sum(level.key() == torch_functorch.TransformType.Jvp for level in stack)


def in_forward_mode() -> bool:
    """Whether a forward-mode derivative is being taken, by torch.func or by torch.autograd.

    Why private: neither has a public question for this.
    """
    return forward_levels() > 0 or torch.autograd.forward_ad._current_level >= 0


def forward_mode() -> contextlib.AbstractContextManager[None]:
    """Inside: an outer forward-mode level goes on, where torch has switched it off.

    Why private: torch runs the `jvp` of a custom autograd Function with forward mode switched off,
    so that `jvp(jvp(f))` is silently zero (torch 2.13.0), and the switch has no public name.
    """
    return torch.autograd.forward_ad._set_fwd_grad_enabled(True)


def backward_would_be_lost() -> bool:
    """Whether Dynamo is tracing through a torch.func transform.

    Why private: torch.func has no public question for whether a transform is running, and this one
    is the only that Dynamo can answer while it traces. There it inlines the forward of a custom
    autograd Function and drops its backward (torch 2.13.0, 2.14.1).
    """
    return torch.compiler.is_dynamo_compiling() and torch._C._are_functorch_transforms_active()
