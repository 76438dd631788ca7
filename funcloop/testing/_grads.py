"""Derivatives checked against differences, in float64, on any pytrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from funcloop._errors import ArgumentError, StructureError
from funcloop._pytree import PyTree
from funcloop.testing._case import Case, Flat

#: Relative to one plus the size of the derivative; differences of fourth order reach 1e-9.
_TOLERANCE = 1e-6
_STEP = 1e-3
_DIRECTIONS = 3
_MODES = ("fwd", "rev")


def check_grads(
    f: Callable[..., PyTree],
    args: Sequence[PyTree],
    surrogate: Callable[..., PyTree] | None = None,
    order: int = 2,
    modes: Sequence[str] = _MODES,
    tolerance: float = _TOLERANCE,
) -> None:
    """Compare the derivatives of `f` with differences, in random directions and in float64.

    For a straight-through function the differences are those of `surrogate`: the smooth function
    whose derivative `f` claims. The value of `f` is not looked at; check it by itself.

    Args:
        f: `(*args) -> output`, any pytrees.
        args: Its arguments. Floating leaves are varied, as float64, and have to lie away from
            kinks; everything else is a constant.
        surrogate: `(*args) -> output` with an output of the same structure; by default `f`.
        order: 1, or 2 for second derivatives as well: every mode of every mode.
        modes: `"fwd"` checks `jvp`, `"rev"` checks `vjp`.
        tolerance: How far a derivative may be off, relative to one plus its size.

    Raises:
        AssertionError: a derivative differs; the message says which, where, and both numbers.

    >>> import torch
    >>> check_grads(torch.sin, (torch.tensor([0.1, 2.0]),))
    >>> from funcloop import ops
    >>> check_grads(ops.ste_round, (torch.tensor([0.2]),), surrogate=lambda x: x)
    >>> check_grads(ops.ste_round, (torch.tensor([0.2]),), surrogate=torch.sin)
    Traceback (most recent call last):
    AssertionError: jvp by 0 gives ... at [0] of output 0, and the differences say ...
    """
    if order not in (1, 2) or not modes or not set(modes) <= set(_MODES):
        raise ArgumentError(
            "check_grads checks order 1 or 2 in modes fwd and rev",
            f"order={order}, modes={tuple(modes)}",
            'use order=2, modes=("fwd", "rev")',
        )
    check = GradCheck(f, args, surrogate, modes, tolerance)
    check.first()
    if order == 2:
        check.second()
    if order == 2 and "fwd" in modes:
        check.forward_twice()


class _Probe(NamedTuple):
    """A direction in one leaf, or in all of them (`leaf` None), and what differences say of it."""

    leaf: int | None
    name: str
    tangents: list[Tensor]
    cotangents: list[Tensor]
    difference: list[Tensor]


class GradCheck:
    """The check of one function at one point, each order by itself."""

    def __init__(
        self,
        f: Callable[..., PyTree],
        args: Sequence[PyTree],
        surrogate: Callable[..., PyTree] | None,
        modes: Sequence[str] = _MODES,
        tolerance: float = _TOLERANCE,
    ) -> None:
        case = Case(f, args).cast(torch.float64)
        self._f, self._point, self._names = case.flat, case.point, case.names
        self._surrogate = case.flat if surrogate is None else Case(surrogate, case.args).flat
        self._modes, self._tolerance = modes, tolerance
        self._generator = torch.Generator().manual_seed(0)

    def first(self) -> None:
        """First derivatives of the function against differences of the surrogate."""
        self._run(self._f, self._surrogate, "", self._modes)

    def second(self) -> None:
        """First derivatives of each first derivative, but for forward over forward."""
        if "fwd" in self._modes:
            tangents = [self._random(x) for x in self._point]
            f, surrogate = _along(self._f, tangents), _along(self._surrogate, tangents)
            self._run(f, surrogate, " of jvp", [mode for mode in self._modes if mode != "fwd"])
        if "rev" in self._modes:
            cotangents = [self._random(x) for x in self._surrogate(*self._point)]
            f, surrogate = _against(self._f, cotangents), _against(self._surrogate, cotangents)
            self._run(f, surrogate, " of vjp", self._modes)

    def forward_twice(self) -> None:
        """Forward mode of forward mode."""
        tangents = [self._random(x) for x in self._point]
        f, surrogate = _along(self._f, tangents), _along(self._surrogate, tangents)
        self._run(f, surrogate, " of jvp", ("fwd",))

    def _run(self, f: Flat, surrogate: Flat, of: str, modes: Sequence[str]) -> None:
        shapes = [tuple(x.shape) for x in surrogate(*self._point)]
        if shapes != [tuple(x.shape) for x in f(*self._point)]:
            raise StructureError(
                "a surrogate has outputs of the shapes of the function",
                f"shapes {shapes}",
                "return what the function returns",
            )
        for leaf in [*range(len(self._point)), None]:
            for _ in range(_DIRECTIONS):
                probe = self._probe(surrogate, leaf)
                if "fwd" in modes:
                    self._forward(f, probe, of)
                if "rev" in modes and leaf is not None:
                    self._reverse(f, probe, of)

    def _random(self, like: Tensor) -> Tensor:
        noise = torch.randn(like.shape, generator=self._generator, dtype=torch.float64)
        return noise.to(like.device)

    def _probe(self, surrogate: Flat, leaf: int | None) -> _Probe:
        tangents = [
            self._random(x) if leaf in (None, i) else torch.zeros_like(x)
            for i, x in enumerate(self._point)
        ]
        difference = _difference(surrogate, self._point, tangents)
        cotangents = [self._random(x) for x in difference]
        name = "all inputs" if leaf is None else self._names[leaf]
        return _Probe(leaf, name, tangents, cotangents, difference)

    def _forward(self, f: Flat, probe: _Probe, of: str) -> None:
        results = _along(f, probe.tangents)(*self._point)
        for number, (got, want) in enumerate(zip(results, probe.difference, strict=True)):
            wrong = ~((got - want).abs() <= self._tolerance * (1 + want.abs()))
            if bool(wrong.any()):
                place = tuple(wrong.nonzero()[0].tolist())
                raise AssertionError(
                    f"jvp{of} by {probe.name} gives {got[place].item():.9g} at {list(place)} of "
                    f"output {number}, and the differences say {want[place].item():.9g}"
                )

    def _reverse(self, f: Flat, probe: _Probe, of: str) -> None:
        assert probe.leaf is not None
        gradient = _against(f, probe.cotangents)(*self._point)[probe.leaf]
        got = (gradient * probe.tangents[probe.leaf]).sum()
        terms = [c * d for c, d in zip(probe.cotangents, probe.difference, strict=True)]
        want, size = sum(x.sum() for x in terms), sum(x.abs().sum() for x in terms)
        if not bool((got - want).abs() <= self._tolerance * (1 + size)):
            raise AssertionError(
                f"vjp{of} by {probe.name} gives {float(got):.9g} in a random direction, and the "
                f"differences say {float(want):.9g}"
            )


def _along(f: Flat, tangents: list[Tensor]) -> Flat:
    return lambda *point: torch.func.jvp(f, point, tuple(tangents))[1]


def _against(f: Flat, cotangents: list[Tensor]) -> Flat:
    return lambda *point: torch.func.vjp(f, *point)[1](tuple(cotangents))


def _difference(f: Flat, point: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
    """The directional derivative by central differences of fourth order."""

    def at(distance: float) -> tuple[Tensor, ...]:
        return f(*[x + distance * t for x, t in zip(point, tangents, strict=True)])

    near = [a - b for a, b in zip(at(_STEP), at(-_STEP), strict=True)]
    far = [a - b for a, b in zip(at(2 * _STEP), at(-2 * _STEP), strict=True)]
    return [(8 * n - f) / (12 * _STEP) for n, f in zip(near, far, strict=True)]
