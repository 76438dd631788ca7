"""Restarted GMRES (Saad and Schultz 1986), orthogonalised twice by classical Gram-Schmidt."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop.meta._loop import Limit, iterate, length
from funcloop.meta._solver import FlatMatvec, Solver


def gmres(
    *,
    restart: int = 20,
    rtol: float | Tensor | None = None,
    atol: float | Tensor = 0.0,
    maxiter: Limit = 10,
    bound: int | None = None,
) -> Solver:
    """GMRES, for any invertible system.

    Args:
        restart: Products, and vectors kept, before each restart.
        rtol: Largest residual relative to the norm of `b`; None is 6e-6 in float32.
        atol: Largest residual that is always good enough. Both may be 0-d tensors.
        maxiter: Most restarts; an int or a 0-d tensor.
        bound: Restarts in a trace where `maxiter` is a tensor.

    Raises:
        ArgumentError: `maxiter` is a tensor and there is no bound.

    >>> a = torch.tensor([[0.0, 1.0], [-2.0, 0.0]])
    >>> x, info = gmres()(lambda x: a @ x, torch.tensor([3.0, 4.0]))
    >>> x, info.iterations
    (tensor([-2.0000,  3.0000]), tensor(1))
    """
    steps = length(maxiter, bound)

    def solve(matvec: FlatMatvec, b: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        size = min(restart, len(b))

        def going(state: tuple[Tensor, Tensor]) -> Tensor:
            return torch.linalg.vector_norm(state[1]) > threshold

        def body(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            x, r = state
            x = x + _correction(matvec, r, size)
            return x, b - matvec(x)

        (x, _), count = iterate(body, (torch.zeros_like(b), b), going, maxiter, steps)
        return x, count

    return Solver("gmres", solve, rtol, atol)


def _correction(matvec: FlatMatvec, r: Tensor, size: int) -> Tensor:
    """The vector of the Krylov space of `r` with the smallest residual."""
    norm = torch.linalg.vector_norm(r)
    basis = [_normalised(r, norm)]
    columns = []
    for _ in range(size):
        w = matvec(basis[-1])
        scale = torch.linalg.vector_norm(w)
        q = torch.stack(basis)  # (j, n)
        h = q.conj() @ w
        w = w - h @ q
        again = q.conj() @ w
        w = w - again @ q
        rest = torch.linalg.vector_norm(w)
        # What rounding leaves of a vector that the basis already spans is no new direction.
        rest = torch.where(rest > 10 * torch.finfo(w.dtype).eps * scale, rest, 0)
        basis.append(_normalised(w, rest))
        column = torch.cat([h + again, rest.to(w.dtype).unsqueeze(0)])
        columns.append(torch.nn.functional.pad(column, (0, size + 1 - len(column))))
    hessenberg = torch.stack(columns, 1)  # (size + 1, size)
    target = torch.nn.functional.pad(norm.to(r.dtype).unsqueeze(0), (0, size))
    # The pseudo-inverse takes no part of directions that a breakdown left empty.
    return (torch.linalg.pinv(hessenberg) @ target) @ torch.stack(basis[:-1])


def _normalised(v: Tensor, norm: Tensor) -> Tensor:
    return torch.where(norm > 0, v / torch.where(norm > 0, norm, 1), 0)
