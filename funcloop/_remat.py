"""Rematerialisation: recompute in the backward pass what the forward pass threw away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from funcloop._attach import Halves, Tensors, Wanted, attach, detached, halve, refuse_captured
from funcloop._barrier import barrier
from funcloop._compat import forward_levels
from funcloop._purity import surroundings
from funcloop._pytree import PyTree

#: `(leaves, constants) -> outputs`, all floating but the constants.
Flat: TypeAlias = Callable[[Tensors, Tensors], tuple[Tensor, ...]]


def remat(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`f` with nothing kept between forward and backward but its arguments.

    Works where `torch.utils.checkpoint` does not: inside torch.func's `grad`, `vmap`, `jvp` and
    their nestings, and inside one compiled graph, where a barrier keeps the compiler from merging
    the recomputation with the original. It recomputes under the same autocast and policy, and
    draws the same random numbers, where they come from a key or a route.

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
        around = surroundings()

        def floating(leaves: Tensors, constants: Tensors) -> tuple[Tensor, ...]:
            if kept:  # a recomputation has a graph, and would be held until the very end
                with around():
                    return tuple(halve(f(*given.join(leaves, constants))).leaves)
            kept.append(halve(f(*given.join(leaves, constants))))
            return tuple(kept[0].leaves)

        outputs = _recomputed(floating, given.leaves, given.constants)
        (made,) = kept
        return made.join(outputs, made.constants)

    return rematerialised


def _recomputed(f: Flat, leaves: Tensors, constants: Tensors) -> list[Tensor]:
    # One pass without a graph gives the values, and shows what `f` captured.
    outputs = f(detached(leaves), constants)
    refuse_captured(outputs, "a rematerialised function")
    return attach(_Recompute(f), outputs, leaves, constants)


@dataclass(frozen=True)
class _Recompute:
    f: Flat
    reads_outputs: bool = False

    def pullback(
        self, outputs: Tensors, leaves: Tensors, constants: Tensors, grads: Tensors, wanted: Wanted
    ) -> Tensors:
        n = len(leaves)

        def back(values: Tensors, constants: Tensors) -> tuple[Tensor, ...]:
            again = barrier(values[:n], values[n:])

            def f(*chosen: Tensor) -> tuple[Tensor, ...]:
                rest = iter(chosen)
                filled = [next(rest) if w else x for x, w in zip(again, wanted, strict=True)]
                return self.f(filled, constants)

            pull = torch.func.vjp(f, *[x for x, w in zip(again, wanted, strict=True) if w])[1]
            return pull(tuple(values[n:]))

        # torch.func.grad keeps the graph of its backward pass, which would hold every step after
        # all: so the backward pass is recomputed too, where it is differentiated.
        return _recomputed(back, [*leaves, *grads], constants)

    def pushforward(
        self, outputs: Tensors, leaves: Tensors, constants: Tensors, steps: Tensors
    ) -> Tensors:
        f = lambda *x: self.f(x, constants)  # noqa: E731  # the two lines read as one
        return torch.func.jvp(f, tuple(leaves), tuple(steps))[1]
