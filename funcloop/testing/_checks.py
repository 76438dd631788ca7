"""The checks of `check_function`, each by its name; each raises where its law does not hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from funcloop.testing._case import Case
from funcloop.testing._laws import assert_deterministic, assert_jit_equal, assert_pure
from funcloop.testing._trees import assert_trees_close

#: Relative to one plus the size, in float64.
_CLOSE = 1e-9
_MEMBERS = 3


def pure(case: Case) -> None:
    """Neither the function nor its gradient changes an argument or draws a random number."""
    frozen = Case(case.f, case.args)
    assert_pure(frozen.f, *frozen.args)
    assert_pure(frozen.vjp(frozen.cotangents()), *frozen.point)


def deterministic(case: Case) -> None:
    """The same arguments give the same bits."""
    assert_deterministic(case.f, *case.args)


def autograd(case: Case) -> None:
    """`backward()` gives what torch.func.vjp gives."""
    case = case.cast(torch.float64)
    cotangents = case.cotangents()
    point = [x.clone().requires_grad_() for x in case.point]
    got = _gradients(case.flat(*point), point, cotangents)
    assert_trees_close(got, case.vjp(cotangents)(*case.point), _CLOSE)


def save(case: Case) -> None:
    """What backward needs is saved where torch can see that it was overwritten.

    A tensor kept on `ctx` as an attribute is not: an input that changes between forward and
    backward then changes the gradient without a word.
    """
    case = case.cast(torch.float64)
    cotangents = case.cotangents()
    start = [x.clone().requires_grad_() for x in case.point]
    point = [x * 1 for x in start]
    outputs = case.flat(*point)
    with torch.no_grad():
        for x in point:
            x.mul_(0.5).add_(0.25)
    try:
        got = _gradients(outputs, start, cotangents)
    except RuntimeError as error:
        if "inplace" in str(error):
            return
        raise
    assert_trees_close(got, case.vjp(cotangents)(*case.point), _CLOSE)


def _gradients(
    outputs: Sequence[Tensor], point: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    reached = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
    if not reached:
        return tuple([torch.zeros_like(x) for x in point])
    results = torch.autograd.grad(
        [o for o, _ in reached], point, [c for _, c in reached], allow_unused=True
    )
    pairs = zip(point, results, strict=True)
    return tuple([torch.zeros_like(x) if g is None else g for x, g in pairs])


def jvp(case: Case) -> None:
    """Forward and reverse mode are transposes: `<c, jvp(t)> = <vjp(c), t>`."""
    case = case.cast(torch.float64)
    for seed in range(3):
        tangents, cotangents = case.tangents(seed), case.cotangents(seed + 10)
        forward = _dot(cotangents, case.jvp(tangents)(*case.point))
        reverse = _dot(case.vjp(cotangents)(*case.point), tangents)
        assert_trees_close(forward, reverse, _CLOSE)


def linear(case: Case) -> None:
    """Backward is linear in the gradient that it is given."""
    case = case.cast(torch.float64)
    a, b = case.cotangents(3), case.cotangents(4)
    both = [2 * x - 3 * y for x, y in zip(a, b, strict=True)]
    parts = zip(case.vjp(a)(*case.point), case.vjp(b)(*case.point), strict=True)
    want = tuple([2 * x - 3 * y for x, y in parts])
    assert_trees_close(case.vjp(both)(*case.point), want, _CLOSE)


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


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


def compiled(case: Case) -> None:
    """Jitted, the function, its gradient and second derivative are what they are eagerly."""
    case = case.cast(torch.float64)
    cotangents, second = case.cotangents(), case.tangents()

    def everything(*point: Tensor) -> dict[str, Any]:
        gradients, pullback = torch.func.vjp(case.vjp(cotangents), *point)[:2]
        batch = [x.expand(2, *x.shape) for x in point]
        return {
            "value": case.flat(*point),
            "grad": gradients,
            "grad(grad)": pullback(tuple(second)),
            "vmap(grad)": vmap(case.vjp(cotangents))(*batch),
        }

    assert_jit_equal(everything, *case.point, rtol=_CLOSE)


def dtype(case: Case) -> None:
    """Outputs have the dtype and device of the floating inputs, and gradients those of theirs.

    A dtype for which torch has no kernel is left out.
    """
    kinds = dict.fromkeys([x.dtype for x in case.point] + [torch.float64, torch.bfloat16])
    for kind in kinds:
        cast = case.cast(kind)
        try:
            outputs = cast.flat(*cast.point)
        except (RuntimeError, TypeError) as error:
            if "not implemented for" in str(error) or "unsupported ScalarType" in str(error):
                continue
            raise
        for number, output in enumerate(outputs):
            _same(f"output {number} for {kind} inputs", output, cast.point[0])
        gradients = cast.vjp(cast.cotangents())(*cast.point)
        for name, gradient, leaf in zip(cast.names, gradients, cast.point, strict=True):
            _same(f"the gradient by {name} for {kind} inputs", gradient, leaf)


def _same(what: str, x: Tensor, y: Tensor) -> None:
    assert x.dtype == y.dtype, f"{what} is {x.dtype} and should be {y.dtype}"
    assert x.device == y.device, f"{what} is on {x.device} and should be on {y.device}"


def strides(case: Case) -> None:
    """Arguments that are not contiguous give the same value and gradient."""
    case = case.cast(torch.float64)
    cotangents = case.cotangents()
    apart = [torch.stack([x, x + 1], -1)[..., 0] for x in case.point]
    backwards = [x.movedim(0, -1).contiguous().movedim(-1, 0) if x.ndim else x for x in case.point]
    spread = [torch.stack([c, c + 1], -1)[..., 0] for c in cotangents]
    for point in (apart, backwards):
        assert_trees_close(case.flat(*point), case.flat(*case.point), _CLOSE)
        want = case.vjp(cotangents)(*case.point)
        assert_trees_close(case.vjp(cotangents)(*point), want, _CLOSE)
        assert_trees_close(case.vjp(spread)(*point), want, _CLOSE)


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


#: What `check_function` runs, in this order; the differences come before these.
CHECKS: dict[str, Callable[[Case], None]] = {
    "pure": pure,
    "deterministic": deterministic,
    "autograd": autograd,
    "save": save,
    "jvp": jvp,
    "linear": linear,
    "vmap": vmap_equals_loop,
    "vmap(grad)": vmap_of_grad,
    "grad(vmap)": grad_of_vmap,
    "jvp(vmap)": jvp_of_vmap,
    "jit": compiled,
    "dtype": dtype,
    "strides": strides,
    "empty": empty,
}
