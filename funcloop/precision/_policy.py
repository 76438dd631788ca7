"""A dtype for params, for what is computed, and for what comes out."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol, TypeVar

import torch

from funcloop import tree
from funcloop._errors import ArgumentError
from funcloop._pytree import PyTree
from funcloop._types import Params
from funcloop.precision._casting import Casting, on_floating

T = TypeVar("T")
Context = contextlib.AbstractContextManager[Any]

_DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}
_PLACES = ("params", "compute", "output")


class Precision(Protocol):
    """How a computation is done in low precision: `Policy` or `Autocast`.

    Attributes:
        params: Of the params that are trained.
        compute: Of matrix products and convolutions.
        output: Of what comes out.
    """

    @property
    def params(self) -> torch.dtype: ...

    @property
    def compute(self) -> torch.dtype: ...

    @property
    def output(self) -> torch.dtype: ...

    def inputs(self, args: T) -> T:
        """A model's inputs, as the computation takes them."""
        ...

    def enter(self, params: Params) -> tuple[Params, Context]:
        """The params as the computation takes them, and the context that it runs in."""
        ...


class Policy:
    """Where which floating dtype is used; the casts are a part of the function.

    Params are kept in `params`, cast to `compute` for each computation, and what comes out is cast
    to `output`. Gradients pass through the casts, so they come back in the dtype of the params.
    Inside, the functions that `torch.nn.functional` has for normalisation and for losses run in
    float32, norm layers with their weights as they were before the cast; matrix products,
    convolutions and attention run in `compute`, whatever they are given; and everything else runs
    in the dtype of its arguments. Integers, bools and complex numbers are never cast.

    Args:
        spec: `"params=float32,compute=bfloat16,output=float32"`; params and output are float32
            where they are left out. float64, float32, bfloat16 and float16 are known.

    Raises:
        ArgumentError: the text says something else.

    >>> policy = Policy("compute=bfloat16")
    >>> policy
    Policy('params=float32,compute=bfloat16,output=float32')
    >>> policy.compute
    torch.bfloat16
    """

    __slots__ = _PLACES

    def __init__(self, spec: str) -> None:
        given = dict(_entry(part) for part in spec.replace(" ", "").split(",") if part)
        if "compute" not in given:
            raise ArgumentError("a policy says what to compute in", repr(spec), "add compute=")
        self.params: torch.dtype = given.get("params", torch.float32)
        self.compute: torch.dtype = given["compute"]
        self.output: torch.dtype = given.get("output", torch.float32)

    def inputs(self, args: T) -> T:
        """Every floating tensor of the inputs in `compute`."""
        return cast_tensors(args, self.compute)

    def enter(self, params: Params) -> tuple[Params, Context]:
        """The params in `compute`, and a context that keeps norms and losses in float32."""
        low = tree.cast(params, self.compute)
        pairs = zip(tree.leaves(low), tree.leaves(params), strict=True)
        return low, Casting(self.compute, {id(a): (a, b) for a, b in pairs if a is not b})

    def __repr__(self) -> str:
        named = ",".join(f"{p}={str(getattr(self, p)).removeprefix('torch.')}" for p in _PLACES)
        return f"Policy({named!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def _entry(part: str) -> tuple[str, torch.dtype]:
    place, _, name = part.partition("=")
    if place not in _PLACES or name not in _DTYPES:
        raise ArgumentError(
            f"a policy gives {', '.join(_PLACES)} a dtype of {', '.join(_DTYPES)}",
            repr(part),
            'write it like "params=float32,compute=bfloat16,output=float32"',
        )
    return place, _DTYPES[name]


class Autocast:
    """PyTorch's own op-by-op casting, for a computation and its gradient.

    The alternative to a `Policy` where torch's lists of what runs in which dtype are wanted; they
    differ between CPU and CUDA. Params and inputs are handed over as they are. Weights are cast
    anew at each use, not cached: torch's cache would hold what was cast where no gradient was
    taken. The backward pass computes in the dtypes of the forward pass, and what it recomputes
    (`estimators.remat`) under the same autocast. What comes out is float32.

    Args:
        compute: torch.bfloat16 or torch.float16.

    Raises:
        ArgumentError: another dtype.

    >>> Autocast(torch.bfloat16)
    Autocast(torch.bfloat16)
    """

    __slots__ = ("compute", "output", "params")

    def __init__(self, compute: torch.dtype = torch.bfloat16) -> None:
        if compute not in (torch.bfloat16, torch.float16):
            raise ArgumentError(
                "autocast computes in bfloat16 or float16", str(compute), "use one of them"
            )
        self.params = self.output = torch.float32
        self.compute = compute

    def inputs(self, args: T) -> T:
        """The inputs as they are."""
        return args

    def enter(self, params: Params) -> tuple[Params, Context]:
        """The params as they are, and the context of `torch.autocast`."""
        leaves = tree.leaves(params)
        kind = leaves[0].device.type if leaves else torch.get_default_device().type
        return params, torch.autocast(kind, dtype=self.compute, cache_enabled=False)

    def __repr__(self) -> str:
        return f"Autocast({self.compute})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Autocast) and self.compute == other.compute

    def __hash__(self) -> int:
        return hash(repr(self))


def cast_tensors(value: PyTree, dtype: torch.dtype) -> Any:
    """`tree.cast`, where some leaves may be no tensors."""
    return on_floating(lambda x: x.to(dtype), value)
