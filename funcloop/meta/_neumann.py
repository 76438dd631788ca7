"""The Neumann series of an inverse (Lorraine et al. 2019, arXiv:1911.02590)."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop.meta._loop import Limit, iterate, length
from funcloop.meta._solver import FlatMatvec, Solver


def neumann(
    scale: float | Tensor = 1.0,
    *,
    rtol: float | Tensor | None = None,
    atol: float | Tensor = 0.0,
    maxiter: Limit = 100,
    bound: int | None = None,
) -> Solver:
    """`A^-1 b = scale * sum_k (I - scale * A)^k b`, for systems near the identity.

    It converges where `I - scale * A` is a contraction.

    Args:
        scale: Below 2 over the largest eigenvalue; may be a 0-d tensor.
        rtol: Largest residual relative to the norm of `b`; None is 6e-6 in float32.
        atol: Largest residual that is always good enough. Both may be 0-d tensors.
        maxiter: Most terms; an int or a 0-d tensor.
        bound: Terms in a trace where `maxiter` is a tensor.

    Raises:
        ArgumentError: `maxiter` is a tensor and there is no bound.

    >>> x, info = neumann(0.5)(lambda x: 1.5 * x, torch.tensor([3.0]))
    >>> x, info.converged
    (tensor([2.0000]), tensor(True))
    """
    steps = length(maxiter, bound)

    def solve(matvec: FlatMatvec, b: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        def going(state: tuple[Tensor, ...]) -> Tensor:
            return torch.linalg.vector_norm(state[1]) > threshold

        def body(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x, term = state
            return x + scale * term, term - scale * matvec(term)

        (x, _), count = iterate(body, (torch.zeros_like(b), b), going, maxiter, steps)
        return x, count

    return Solver("neumann", solve, rtol, atol)
