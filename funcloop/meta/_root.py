"""Solvers of equations with implicit derivatives (Blondel et al. 2021, arXiv:2105.15183)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from funcloop import tree
from funcloop._attach import detached, halve, refuse_captured
from funcloop._errors import StructureError
from funcloop._pytree import PyTree
from funcloop.meta._gmres import gmres
from funcloop.meta._implicit import implicit
from funcloop.meta._solver import Solver


def custom_root(
    optimality: Callable[..., PyTree],
    solve: Callable[..., PyTree],
    *,
    solver: Solver | None = None,
    tol: float | Tensor = 1e-3,
) -> Callable[..., PyTree]:
    """`solve`, with the derivatives of the root of `optimality` that it finds.

    With F(x*, a) = 0, dx* = -(dF/dx)^-1 (dF/da) da: nothing of the way to the solution is kept, in
    forward and in reverse mode, under vmap, and as often as it is differentiated.

    Args:
        optimality: `(x, *args) -> tree like x`, zero at the solution; for a minimum the gradient
            of the objective. Tensors that it captures are constants.
        solve: `(*args) -> x`, by any means.
        solver: For the linear systems of the derivative; by default `gmres()`. Where `optimality`
            is a gradient its derivative is symmetric, and `cg()` is cheaper.
        tol: Largest norm of `optimality(x)`, relative to `max(1, norm of x)`, at which `x` passes
            as a solution. Elsewhere a derivative would be wrong: it is NaN, and eagerly a
            ConvergenceError. `float("inf")` trusts the solve.

    Returns:
        `(*args) -> x`.

    Raises:
        UnsupportedError: at the call, where one of the functions captures a tensor that is being
            differentiated.
        StructureError: `optimality` returns another structure or shapes than `x` has.
        ConvergenceError: at the derivative, eagerly, as said above.

    >>> sqrt = custom_root(lambda x, a: x**2 - a, torch.sqrt)
    >>> torch.func.grad(sqrt)(torch.tensor(4.0))
    tensor(0.2500)
    """
    linear = gmres() if solver is None else solver

    def root(*args: PyTree) -> PyTree:
        given = halve(args)
        values = given.join(detached(given.leaves), given.constants)
        x = solve(*values)
        rest = optimality(x, *values)
        _check_alike(rest, x)
        refuse_captured(tree.leaves(x), "a custom root")
        refuse_captured(tree.leaves(rest), "a custom root")
        size = torch.maximum(tree.norm(x), torch.ones_like(tree.norm(x)))
        return implicit(optimality, linear, x, args, tree.norm(rest) <= tol * size, "the solution")

    return root


def custom_fixed_point(
    f: Callable[..., PyTree],
    solve: Callable[..., PyTree],
    *,
    solver: Solver | None = None,
    tol: float | Tensor = 1e-3,
) -> Callable[..., PyTree]:
    """`solve`, with the derivatives of the fixed point `x = f(x, *args)` that it finds.

    Args:
        f: `(x, *args) -> tree like x`.
        solve: `(*args) -> x`, by any means.
        solver: As in `custom_root`; for a contraction `neumann()` is the cheapest.
        tol: The same, for `x - f(x)`.

    Returns:
        `(*args) -> x`.

    >>> half = custom_fixed_point(lambda x, a: (x + a) / 2, lambda a: a)
    >>> torch.func.grad(half)(torch.tensor(4.0))
    tensor(1.)
    """
    return custom_root(lambda x, *args: tree.sub(x, f(x, *args)), solve, solver=solver, tol=tol)


def _check_alike(rest: PyTree, x: PyTree) -> None:
    rows = tree.flatten_like(tree.structure(x), rest, "the optimality")
    for (path, leaf), row in zip(tree.items(x), rows, strict=True):
        if leaf.shape != row.shape:
            raise StructureError(
                "an optimality condition has one equation for each unknown",
                f"{path or 'x'} has shape {tuple(leaf.shape)}, its equation {tuple(row.shape)}",
                "return a tree of the shapes of x",
            )
