"""Conjugate gradients (Hestenes and Stiefel 1952)."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop.meta._loop import Limit, iterate, length
from funcloop.meta._solver import FlatMatvec, Solver


def cg(
    *,
    rtol: float | Tensor | None = None,
    atol: float | Tensor = 0.0,
    maxiter: Limit = 100,
    bound: int | None = None,
) -> Solver:
    """Conjugate gradients, for symmetric (Hermitian) positive definite systems.

    Eagerly it stops when the residual is small enough; a trace contains `maxiter` iterations, each
    of which does nothing once that is so. A direction of no or negative curvature stops it, and it
    reports that it has not converged.

    Args:
        rtol: Largest residual relative to the norm of `b`; None is 6e-6 in float32.
        atol: Largest residual that is always good enough. Both may be 0-d tensors.
        maxiter: Most iterations; an int or a 0-d tensor.
        bound: Iterations in a trace where `maxiter` is a tensor.

    Raises:
        ArgumentError: `maxiter` is a tensor and there is no bound.

    >>> a = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    >>> x, info = cg()(lambda x: a @ x, torch.tensor([1.0, 2.0]))
    >>> x, info.converged, info.iterations
    (tensor([0.0909, 0.6364]), tensor(True), tensor(2))
    """
    steps = length(maxiter, bound)

    def solve(matvec: FlatMatvec, b: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        def going(state: tuple[Tensor, ...]) -> Tensor:
            _, _, _, square, curved = state
            return (square.sqrt() > threshold) & curved

        def body(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x, r, p, square, _ = state
            product = matvec(p)
            curvature = torch.linalg.vecdot(p, product).real
            curved = curvature > 0
            size = torch.where(curved, square / torch.where(curved, curvature, 1), 0)
            x, r = x + size * p, r - size * product
            new = square_of(r)
            return x, r, r + (new / square) * p, new, curved

        square = square_of(b)
        start = (torch.zeros_like(b), b, b, square, square >= 0)
        (x, *_), count = iterate(body, start, going, maxiter, steps)
        return x, count

    return Solver("cg", solve, rtol, atol)


def square_of(v: Tensor) -> Tensor:
    return torch.linalg.vecdot(v, v).real
