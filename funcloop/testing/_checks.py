"""The checks of `check_function`, each by its name; each raises where its law does not hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from funcloop.testing._batching import (
    empty,
    grad_of_vmap,
    jvp_of_vmap,
    vmap_equals_loop,
    vmap_of_grad,
)
from funcloop.testing._case import Case
from funcloop.testing._laws import assert_deterministic, assert_jit_equal, assert_pure
from funcloop.testing._trees import assert_trees_close

#: Relative to one plus the size, in float64.
_CLOSE = 1e-9


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
