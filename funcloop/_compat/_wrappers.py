"""What is inside a tensor that torch.func, a tracer or a subclass such as DTensor has wrapped."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
import torch._C._functorch as torch_functorch
import torch.utils._python_dispatch as torch_dispatch
from torch import Tensor


def wrapper_chain(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor and what torch.func's transforms wrapped around it, from the outside inwards.

    Why private: `requires_grad` of a wrapped tensor speaks of the innermost transform only.
    """
    yield tensor
    while torch_functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch_functorch.get_unwrapped(tensor)
        yield tensor


def batch_levels(tensor: Tensor) -> frozenset[int]:
    """The levels of the vmaps that a tensor is batched in.

    Why private: torch.func has no public question for whether a tensor is batched.
    """
    if not torch_functorch.is_functorch_wrapped_tensor(tensor):
        return frozenset()
    levels = set()
    while torch_functorch.is_functorch_wrapped_tensor(tensor):
        if torch_functorch.is_batchedtensor(tensor):
            levels.add(torch_functorch.maybe_get_level(tensor))
        tensor = torch_functorch.get_unwrapped(tensor)
    return frozenset(levels)


def storage_of(tensor: Tensor) -> int:
    """A number that two tensors share when they share memory, also through functorch wrappers.

    Why private: wrapped tensors of vmap and grad have no storage of their own, and meta and fake
    storages have no address to compare.
    """
    while torch_functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch_functorch.get_unwrapped(tensor)
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse tensors, some wrapper subclasses
        return id(tensor)


def without_tangent(tensor: Tensor) -> Tensor:
    """The tensor without its tangent of the innermost level of forward mode.

    Why private: `unpack_dual` has no batching rule (torch 2.13.0), so a batched tensor is unpacked
    inside its wrapper, and torch.func has no public way into one.
    """
    if torch_functorch.is_batchedtensor(tensor):
        inner = without_tangent(torch_functorch.get_unwrapped(tensor))
        dim, level = torch_functorch.maybe_get_bdim(tensor), torch_functorch.maybe_get_level(tensor)
        return torch_functorch._add_batch_dim(inner, dim, level)
    return torch.autograd.forward_ad.unpack_dual(tensor).primal


def values_are_known(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor exist: nobody traces, and it is no fake or meta tensor.

    Why private: neither fake tensors nor `make_fx` have a public question for this.
    """
    *_, plain = wrapper_chain(tensor)
    fakes = sys.modules.get("torch._subclasses.fake_tensor")  # not imported: there are none yet
    tracing = (
        torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
        or torch.compiler.is_compiling()
    )
    return not (tracing or plain.is_meta or (fakes and isinstance(plain, fakes.FakeTensor)))


def is_wrapper(tensor: Tensor) -> bool:
    """Whether a tensor is a subclass around others, such as a DTensor.

    Why private: only AOTAutograd takes such a tensor apart, and its question has no public name.
    """
    return torch_dispatch.is_traceable_wrapper_subclass(tensor)


def inner_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensors inside a wrapper.

    Why private: the protocol by which wrappers are taken apart has no public name.
    """
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # wrappers have it
    found = [getattr(tensor, name) for name in names]
    return [inner for inner in found if isinstance(inner, Tensor)]  # a DTensor has a mesh as well
