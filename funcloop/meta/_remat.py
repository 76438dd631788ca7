"""Rematerialisation: recompute in the backward pass what the forward pass threw away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from funcloop._compat import forward_levels
from funcloop._pytree import PyTree
from funcloop.meta._attach import Halves, Tensors, attach, detached, halve, refuse_captured
from funcloop.meta._barrier import barrier


def remat(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`f` with nothing kept between forward and backward but its arguments.

    Works where `torch.utils.checkpoint` does not: inside torch.func's `grad`, `vmap`, `jvp` and
    their nestings, and inside one compiled graph, where a barrier keeps the compiler from merging
    the recomputation with the original.

    Args:
        f: A pure function of pytrees. Tensors that it captures are constants.

    Returns:
        The same function.

    Raises:
        UnsupportedError: at the call, where `f` captures a tensor that is being differentiated.

    >>> f = remat(lambda x: {"y": x.sin().exp()})
    >>> torch.func.grad(lambda x: f(x)["y"])(torch.tensor(0.0))
    tensor(1.)
    """

    def rematerialised(*args: PyTree) -> PyTree:
        if forward_levels() > 1:
            return f(*args)  # forward mode keeps nothing, and torch nests no jvp of Functions
        given = halve(args)
        kept: list[Halves] = []

        def floating(leaves: Tensors, constants: Tensors) -> tuple[torch.Tensor, ...]:
            made = halve(f(*given.join(leaves, constants)))
            kept[:] = [made]
            return tuple(made.leaves)

        # One forward pass without a graph gives the values, and shows what `f` captured.
        outputs = floating(detached(given.leaves), given.constants)
        refuse_captured(outputs, "a rematerialised function")
        (made,) = kept
        rule = _Recompute(floating)
        return made.join(attach(rule, outputs, given.leaves, given.constants), made.constants)

    return rematerialised


@dataclass(frozen=True)
class _Recompute:
    f: Callable[[Tensors, Tensors], tuple[torch.Tensor, ...]]

    def pullback(self, outputs: Tensors, leaves: Tensors, constants: Tensors, grads: Tensors):
        again = barrier(leaves, grads)
        _, pull = torch.func.vjp(lambda *x: self.f(x, constants), *again)
        return pull(tuple(grads))

    def pushforward(
        self, outputs: Tensors, leaves: Tensors, constants: Tensors, steps: Tensors
    ) -> Any:
        f = lambda *x: self.f(x, constants)  # noqa: E731  # the two lines read as one
        return torch.func.jvp(f, tuple(leaves), tuple(steps))[1]
