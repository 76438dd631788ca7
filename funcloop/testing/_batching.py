"""The checks of `check_function` that compare vmap with a loop over members."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from funcloop.testing._case import Case
from funcloop.testing._trees import assert_trees_close

#: Relative to one plus the size, in float64.
_CLOSE = 1e-9
_MEMBERS = 3


def vmap_equals_loop(case: Case) -> None:
    """`vmap(f)` is the loop over members, for every choice of what is batched."""
    _over_members(case.cast(torch.float64), lambda case: case.flat)


def vmap_of_grad(case: Case) -> None:
    """`vmap(grad(f))` is the loop over members, for every choice of what is batched."""
    case = case.cast(torch.float64)
    _over_members(case, lambda case: case.vjp(case.cotangents()))


def _over_members(case: Case, derive: Callable[[Case], Callable[..., Any]]) -> None:
    f = derive(case)
    for in_dims in _choices(len(case.point)):
        batched = _batched(case, in_dims)
        got = vmap(f, in_dims)(*batched)
        members = [f(*_member(batched, in_dims, i)) for i in range(_MEMBERS)]
        want = tuple([torch.stack(results) for results in zip(*members, strict=True)])
        _within(f"in_dims={in_dims}", got, want)


def grad_of_vmap(case: Case) -> None:
    """The gradient of `vmap(f)` is that of the loop; what is not batched gets the sum."""
    case = case.cast(torch.float64)
    for in_dims in _choices(len(case.point)):
        batched = _batched(case, in_dims)
        batched_f = vmap(case.flat, in_dims)
        cotangents = case.random_like(batched_f(*batched), seed=5)
        got = torch.func.vjp(batched_f, *batched)[1](tuple(cotangents))
        members = [
            case.vjp([c[i] for c in cotangents])(*_member(batched, in_dims, i))
            for i in range(_MEMBERS)
        ]
        want = tuple(
            [
                torch.stack(grads).sum(0) if dim is None else torch.stack(grads, dim)
                for dim, grads in zip(in_dims, zip(*members, strict=True), strict=True)
            ]
        )
        _within(f"in_dims={in_dims}", got, want)


def jvp_of_vmap(case: Case) -> None:
    """Forward mode of `vmap(f)` is that of the loop."""
    case = case.cast(torch.float64)
    for in_dims in _choices(len(case.point)):
        batched = _batched(case, in_dims)
        tangents = case.random_like(batched, seed=6)
        got = torch.func.jvp(vmap(case.flat, in_dims), tuple(batched), tuple(tangents))[1]
        members = [
            case.jvp(_member(tangents, in_dims, i))(*_member(batched, in_dims, i))
            for i in range(_MEMBERS)
        ]
        want = tuple([torch.stack(results) for results in zip(*members, strict=True)])
        _within(f"in_dims={in_dims}", got, want)


def _choices(number: int) -> Iterator[tuple[int | None, ...]]:
    """Every choice of what is batched, and once along the last dimension."""
    some: list[tuple[int | None, ...]] = [(0,) * number]
    if number <= 4:
        some += [c for c in itertools.product((0, None), repeat=number) if any(d == 0 for d in c)]
    else:
        some += [tuple(None if i == j else 0 for i in range(number)) for j in range(number)]
    yield from dict.fromkeys(some)
    yield (-1,) * number


def _batched(case: Case, in_dims: tuple[int | None, ...]) -> list[Tensor]:
    return [
        x if dim is None else torch.stack([x * (1 + i / 7) for i in range(_MEMBERS)], dim)
        for x, dim in zip(case.point, in_dims, strict=True)
    ]


def _member(batched: list[Tensor], in_dims: tuple[int | None, ...], i: int) -> list[Tensor]:
    pairs = zip(batched, in_dims, strict=True)
    return [x if dim is None else x.select(dim, i) for x, dim in pairs]


def _within(where: str, got: Any, want: Any) -> None:
    try:
        assert_trees_close(got, want, _CLOSE)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from None


def empty(case: Case) -> None:
    """A batch without members gives results without members."""
    outputs = case.flat(*case.point)
    none = [x.new_empty(0, *x.shape) for x in case.point]
    for f, like in ((case.flat, outputs), (case.vjp(case.cotangents()), case.point)):
        try:
            got = vmap(f)(*none)
        except IndexError as error:
            if "select(): index 0 out of range" in str(error):
                continue  # torch 2.13 fails so on the product of a tensor with a 0-d one
            raise
        want = tuple([x.new_empty(0, *x.shape) for x in like])
        assert_trees_close(got, want)
