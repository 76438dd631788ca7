"""An identity that no compiler sees through, and that cannot run before what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("funcloop::barrier", mutates_args=())
def _barrier(values: list[Tensor], after: list[Tensor]) -> list[Tensor]:
    return [value.clone() for value in values]  # an operator may not return its inputs


@_barrier.register_fake
def _(values: list[Tensor], after: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(value) for value in values]


def barrier(values: Sequence[Tensor], after: Sequence[Tensor]) -> list[Tensor]:
    """Copies of `values` that exist only when all of `after` do.

    What is computed from the copies is for a compiler another value than what was computed from the
    originals, so it cannot merge a recomputation with the original (common subexpressions), nor
    move it forward. Differentiable, batched, and the identity in every derivative.
    """
    return list(_Barrier.apply(len(values), *values, *after)) if values else []  # type: ignore[arg-type]  # apply returns a tuple


class _Barrier(torch.autograd.Function):
    # A torch.library formula would not do: its Function has no setup_context, which torch.func
    # asks for (torch 2.13).
    @staticmethod
    def forward(n: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        # Never a list of one: Inductor's C++ calls take that for the tensor itself and crash
        # (torch 2.13.0).
        values = [*tensors[:n], tensors[0].new_empty(0)]
        return tuple(_barrier(values, list(tensors[n:]))[:n])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.n, ctx.rest = inputs[0], len(inputs) - 1 - inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *grads, *[None] * ctx.rest)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        return tuple(None if t is None else t.clone() for t in tangents[1 : ctx.n + 1])

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *args: Any) -> Any:
        return _Barrier.apply(*args), tuple(in_dims[1 : args[0] + 1])
