"""The dense solve: the matrix column by column, then its LU factors."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop.meta._solver import FlatMatvec, Solver


def lu(*, rtol: float | Tensor | None = None, atol: float | Tensor = 0.0) -> Solver:
    """The direct solve of any invertible system of up to a few thousand unknowns.

    Args:
        rtol: Largest residual relative to the norm of `b`; None is 6e-6 in float32. A singular
            matrix misses it, and is reported as not converged.
        atol: Largest residual that is always good enough. Both may be 0-d tensors.

    >>> b = {"a": torch.ones(1), "b": torch.ones(1)}
    >>> x, info = lu()(lambda x: {"a": x["b"], "b": 2 * x["a"]}, b)
    >>> x
    {'a': tensor([0.5000]), 'b': tensor([1.])}
    """

    def solve(matvec: FlatMatvec, b: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        eye = torch.eye(len(b), dtype=b.dtype, device=b.device)
        matrix = torch.func.vmap(matvec, out_dims=1)(eye)  # column i is A e_i
        factors, pivots, _ = torch.linalg.lu_factor_ex(matrix)
        x = torch.linalg.lu_solve(factors, pivots, b.unsqueeze(-1)).squeeze(-1)
        return x, torch.ones((), dtype=torch.int64, device=b.device)

    return Solver("lu", solve, rtol, atol)
