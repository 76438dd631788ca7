"""What the routed functions share: where a call's key is from, and how its arguments are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.overrides import resolve_name

from funcloop._compat import batch_levels
from funcloop._errors import RandomnessError
from funcloop._types import Key

Function = Callable[..., Any]


class Route(Protocol):
    """The active route: gives each drawing call its key."""

    def take(self, func: Function, device: torch.device) -> Key:
        """The key of the next call, on `device`.

        Raises:
            RandomnessError: the route has no key.
        """
        ...

    def inside(self, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a Python function so that the calls in its body are routed too."""
        ...


#: Called with the route, the function and its arguments in place of the function.
Rule = Callable[..., Any]


def refuse(func: Function, why: str, remedy: str) -> NoReturn:
    raise RandomnessError(
        "every random number is taken from the key", f"{name_of(func)} {why}", remedy
    )


def name_of(func: Function) -> str:
    return resolve_name(func) or getattr(func, "__name__", str(func))


def bind(
    func: Function, spec: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """The values of the arguments of `spec` (name to default), in its order.

    Raises:
        RandomnessError: a generator or another argument that is not of `spec`.
    """
    given = {**dict(zip(spec, args, strict=False)), **kwargs}
    if given.pop("generator", None) is not None:
        refuse(func, "was given a generator", "leave generator= out: the key is the only source")
    for name, value in given.items():
        if name not in spec and value is not None:
            refuse(func, f"was given {name}={value!r}", f"leave {name}= out")
    return [given.get(name, default) for name, default in spec.items()]


def fill(func: Function, x: Tensor, value: Tensor) -> Tensor:
    """`x` with `value` written into it.

    Raises:
        RandomnessError: under vmap, `x` is one tensor and `value` differs between the members.
    """
    if not batch_levels(value) <= batch_levels(x):
        refuse(
            func,
            "would write a number for each member of a vmap into one tensor of all members",
            "make a new tensor (torch.rand, inplace=False), or fill one made like a batched one",
        )
    return x.copy_(value)


#: Options of the functions that make a tensor. Strides and pinning are not the key's business.
TENSOR_OPTIONS = {
    "dtype": None,
    "layout": torch.strided,
    "device": None,
    "requires_grad": False,
    "pin_memory": False,
    "memory_format": None,
}


def options_of(
    func: Function, kwargs: Mapping[str, Any], like: Tensor | None = None
) -> tuple[torch.dtype | None, torch.device, bool]:
    """The dtype, device and `requires_grad` asked for, by default those of `like`.

    Raises:
        RandomnessError: `out=`, a generator, a layout that is not strided, or pinned memory.
    """
    dtype, layout, device, grad, pinned, _ = bind(func, TENSOR_OPTIONS, (), kwargs)
    if layout not in (None, torch.strided) or pinned:
        refuse(func, "was asked for a sparse or pinned tensor", "make a strided one and convert it")
    if like is not None:
        dtype, device = dtype or like.dtype, device or like.device
    return dtype, torch.device(device or torch.get_default_device()), bool(grad)
