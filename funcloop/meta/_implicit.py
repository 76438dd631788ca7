"""The implicit function theorem: the derivative of a root, without how it was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from funcloop import tree
from funcloop._attach import Tensors, Wanted, attach, halve
from funcloop._compat import batch_levels, forward_levels, values_are_known
from funcloop._errors import ConvergenceError, UnsupportedError
from funcloop._pytree import PyTree


class LinearSolve(Protocol):
    """`(matvec, b, *operands) -> (x, info)`, differentiable in b and operands."""

    def __call__(
        self, matvec: Callable[..., PyTree], b: PyTree, *operands: PyTree
    ) -> tuple[PyTree, Any]: ...


def implicit(
    optimality: Callable[..., PyTree],
    solver: LinearSolve,
    solution: PyTree,
    args: tuple[PyTree, ...],
    solved: Tensor,
    name: str,
) -> PyTree:
    """`solution`, with the derivative of the root of `optimality(., *args)` in `args`.

    With F(x, a) = 0: dx = -(dF/dx)^-1 (dF/da) da.

    Args:
        optimality: F, which returns a tree like the solution.
        solver: For the linear systems.
        solution: The root, computed without a graph.
        args: a.
        solved: Whether it is one, 0-d bool; otherwise every derivative is refused.
        name: What solved it, for the error.

    Raises:
        UnsupportedError: inside two nested forward-mode transforms.
    """
    if forward_levels() > 1:
        raise UnsupportedError(
            "an implicit derivative is taken forward once",
            "torch.func.jvp (or jacfwd) inside another one",
            "take one of the two in reverse: jacfwd(jacrev(f)), grad(jvp(f))",
        )
    found, given = halve(solution), halve(args)

    def flat(x: Tensors, leaves: Tensors, constants: Tensors) -> tuple[Tensor, ...]:
        arguments = given.join(leaves, constants)
        result = optimality(found.join(x, found.constants), *arguments)
        rows = tree.flatten_like(found.structure, result, "the optimality")
        return tuple(row for row, (part, _) in zip(rows, found.places, strict=True) if part == 0)

    rule = _Implicit(flat, solver, name)
    constants = [*given.constants, solved]
    return found.join(attach(rule, found.leaves, given.leaves, constants), found.constants)


@dataclass(frozen=True)
class _Implicit:
    f: Callable[[Tensors, Tensors, Tensors], tuple[Tensor, ...]]
    solver: LinearSolve
    name: str
    reads_outputs: bool = True

    def pullback(
        self, outputs: Tensors, leaves: Tensors, constants: Tensors, grads: Tensors, wanted: Wanted
    ) -> Tensors:
        *constants, solved = constants

        def transposed(v: Tensors, x: Tensors, leaves: Tensors) -> Tensors:
            pull = torch.func.vjp(lambda *x: self.f(x, leaves, constants), *x)[1]
            return list(pull(tuple(v)))

        u, info = self.solver(transposed, list(grads), list(outputs), list(leaves))
        pull = torch.func.vjp(lambda *a: self.f(outputs, a, constants), *leaves)[1]
        back = zip(pull(tuple(-v for v in u)), wanted, strict=True)
        return self._trusted([g for g, want in back if want], solved, info)

    def pushforward(
        self, outputs: Tensors, leaves: Tensors, constants: Tensors, steps: Tensors
    ) -> Tensors:
        *constants, solved = constants

        def forward(v: Tensors, x: Tensors, leaves: Tensors) -> Tensors:
            return list(_jvp(lambda *x: self.f(x, leaves, constants), x, v))

        change = _jvp(lambda *a: self.f(outputs, a, constants), leaves, steps)
        u, info = self.solver(forward, [-c for c in change], list(outputs), list(leaves))
        return self._trusted(u, solved, info)

    def _trusted(self, values: Tensors, solved: Tensor, info: Any) -> list[Tensor]:
        """The values where both solves converged; NaN otherwise, or an error where it can be."""
        for fine, what in ((solved, self.name), (info.converged, "the solve for its derivative")):
            if values_are_known(fine) and not batch_levels(fine) and not bool(fine):
                raise ConvergenceError(
                    "an implicit derivative is that of a solution",
                    f"{what} did not converge",
                    "allow more iterations or a larger tolerance, or use another solver",
                )
        fine = solved & info.converged
        return [torch.where(fine, value, torch.nan) for value in values]


def _jvp(f: Callable[..., Tensors], at: Tensors, along: Tensors) -> Tensors:
    return torch.func.jvp(f, tuple(at), tuple(along))[1]
