"""One sample call of a function, taken apart into what is varied and what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from funcloop._pytree import PyTree, flatten, paths_of, unflatten

Flat = Callable[..., tuple[Tensor, ...]]


class Case:
    """A function and its arguments.

    Attributes:
        args: The arguments.
        names: The path of each floating leaf.
        point: The floating leaves.
    """

    def __init__(self, f: Callable[..., PyTree], args: Sequence[PyTree]) -> None:
        self.f, self.args = f, tuple(args)
        self._leaves, self._structure = flatten(self.args)
        self._places = [i for i, x in enumerate(self._leaves) if _is_floating(x)]
        paths = paths_of(self._structure)
        self.names = [paths[i] for i in self._places]
        self.point: list[Tensor] = [self._leaves[i].detach() for i in self._places]

    def flat(self, *point: Tensor) -> tuple[Tensor, ...]:
        """The floating outputs as a function of the floating leaves."""
        outputs = flatten(self.f(*self.at(point)))[0]
        return tuple([x for x in outputs if _is_floating(x)])

    def vjp(self, cotangents: Sequence[Tensor]) -> Flat:
        """The gradients as a function of the floating leaves."""
        return lambda *point: torch.func.vjp(self.flat, *point)[1](tuple(cotangents))

    def jvp(self, tangents: Sequence[Tensor]) -> Flat:
        """The tangent of the output as a function of the floating leaves."""
        return lambda *point: torch.func.jvp(self.flat, point, tuple(tangents))[1]

    def at(self, point: Sequence[Any]) -> tuple[PyTree, ...]:
        """The arguments with these floating leaves."""
        filled = list(self._leaves)
        for place, leaf in zip(self._places, point, strict=True):
            filled[place] = leaf
        return unflatten(self._structure, filled)

    def cast(self, dtype: torch.dtype) -> Case:
        """The same call with its floating leaves in another dtype."""
        return Case(self.f, self.at([x.to(dtype) for x in self.point]))

    def random_like(self, tensors: Sequence[Tensor], seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [
            torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in tensors
        ]

    def cotangents(self, seed: int = 1) -> list[Tensor]:
        return self.random_like(self.flat(*self.point), seed)

    def tangents(self, seed: int = 2) -> list[Tensor]:
        return self.random_like(self.point, seed)


def _is_floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
