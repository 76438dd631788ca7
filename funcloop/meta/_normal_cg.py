"""Conjugate gradients on the normal equations (Hestenes and Stiefel 1952), as CGLS."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop.meta._cg import square_of
from funcloop.meta._loop import Limit, iterate, length
from funcloop.meta._solver import FlatMatvec, Solver


def normal_cg(
    *,
    rtol: float | Tensor | None = None,
    atol: float | Tensor = 0.0,
    maxiter: Limit = 100,
    bound: int | None = None,
) -> Solver:
    """Conjugate gradients on `A^H A x = A^H b`, for any invertible system.

    The transposed product comes from torch.func.vjp. The condition number is that of `A`, squared.

    Args:
        rtol: Largest residual `b - A x` relative to the norm of `b`; None is 6e-6 in float32.
        atol: Largest residual that is always good enough. Both may be 0-d tensors.
        maxiter: Most iterations; an int or a 0-d tensor.
        bound: Iterations in a trace where `maxiter` is a tensor.

    Raises:
        ArgumentError: `maxiter` is a tensor and there is no bound.

    >>> a = torch.tensor([[0.0, 1.0], [-2.0, 0.0]])
    >>> normal_cg()(lambda x: a @ x, torch.tensor([3.0, 4.0]))[0]
    tensor([-2.0000,  3.0000])
    """
    steps = length(maxiter, bound)

    def solve(matvec: FlatMatvec, b: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        pull = torch.func.vjp(matvec, torch.zeros_like(b))[1]

        def going(state: tuple[Tensor, ...]) -> Tensor:
            _, r, _, square = state
            return (torch.linalg.vector_norm(r) > threshold) & (square > 0)

        def body(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x, r, p, square = state
            product = matvec(p)
            length_of = square_of(product)
            size = torch.where(length_of > 0, square / torch.where(length_of > 0, length_of, 1), 0)
            x, r = x + size * p, r - size * product
            (s,) = pull(r)
            new = square_of(s)
            return x, r, s + (new / square) * p, torch.where(length_of > 0, new, 0)

        (s,) = pull(b)
        (x, *_), count = iterate(
            body, (torch.zeros_like(b), b, s, square_of(s)), going, maxiter, steps
        )
        return x, count

    return Solver("normal_cg", solve, rtol, atol)
