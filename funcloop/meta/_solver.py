"""Linear solvers: what they are called with, what they report, and their derivative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from funcloop import tree
from funcloop._attach import detached, halve, refuse_captured
from funcloop._errors import StructureError
from funcloop._pytree import PyTree
from funcloop.meta._implicit import implicit

#: `v -> A v` on flat vectors of shape (n,).
FlatMatvec: TypeAlias = Callable[[Tensor], Tensor]
#: `(matvec, b, threshold) -> (x, iterations)` on flat vectors of shape (n,).
Algorithm: TypeAlias = Callable[[FlatMatvec, Tensor, Tensor], tuple[Tensor, Tensor]]


class SolveInfo(NamedTuple):
    """How a solve ended.

    Attributes:
        converged: Whether the residual is within the tolerance, 0-d bool.
        iterations: How many were made, 0-d int64.
        residual: Norm of `b - A x`, computed from the solution itself, 0-d.
    """

    converged: Tensor
    iterations: Tensor
    residual: Tensor


@dataclass(frozen=True)
class Solver:
    """A matrix-free solver of `A x = b`; made by `cg`, `normal_cg`, `gmres`, `neumann` and `lu`.

    Attributes:
        name: What it is called in errors.
        algorithm: On flat vectors.
        rtol: Largest residual relative to the norm of `b`; None is `eps ** 0.75` of the coarsest
            dtype among the leaves of `b` (6e-6 in float32).
        atol: Largest residual that is always good enough.
    """

    name: str
    algorithm: Algorithm
    rtol: float | Tensor | None
    atol: float | Tensor

    def __call__(
        self, matvec: Callable[..., PyTree], b: PyTree, *operands: PyTree
    ) -> tuple[PyTree, SolveInfo]:
        """The solution of `matvec(x, *operands) = b`, and how the solve ended.

        Its derivative with respect to `b` and the operands, in both modes, is that of the exact
        solution, found by another solve. Where either solve did not converge the derivative is NaN,
        and eagerly a ConvergenceError.

        Args:
            matvec: `(x, *operands) -> tree like b`, linear in `x`.
            b: Any tree of floating tensors.
            operands: What the matrix is made of, where it is differentiated.

        Raises:
            UnsupportedError: `matvec` captures a tensor that is being differentiated.
            StructureError: `matvec` returns another structure or shape than `b` has.
        """
        given = halve((b, operands))
        right, values = given.join(detached(given.leaves), given.constants)
        x, info = self._solve(lambda v: matvec(v, *values), right)
        refuse_captured(tree.leaves(x), "a linear solve")

        def residual(x: PyTree, b: PyTree, *operands: PyTree) -> PyTree:
            return tree.sub(matvec(x, *operands), b)

        return implicit(residual, self, x, (b, *operands), info.converged, self.name), info

    def _solve(self, matvec: Callable[[PyTree], PyTree], b: PyTree) -> tuple[PyTree, SolveInfo]:
        vector, unravel = ravel(b)
        shapes = [leaf.shape for leaf in tree.leaves(b)]

        def flat(v: Tensor) -> Tensor:
            result = matvec(unravel(v))
            leaves = tree.flatten_like(tree.structure(b), result, "the product")
            _check_shapes([leaf.shape for leaf in leaves], shapes)
            return torch.cat([leaf.reshape(-1).to(vector.dtype) for leaf in leaves])

        if not vector.numel():
            zero = torch.zeros((), device=vector.device)
            return b, SolveInfo(zero == 0, zero.to(torch.int64), zero)
        threshold = self._threshold(b, vector)
        # The recursions' own residual drifts from the true one by rounding: aim a little lower.
        x, iterations = self.algorithm(flat, vector, 0.5 * threshold)
        residual = torch.linalg.vector_norm(vector - flat(x))
        return unravel(x), SolveInfo(residual <= threshold, iterations, residual)

    def _threshold(self, b: PyTree, vector: Tensor) -> Tensor:
        rtol = self.rtol
        if rtol is None:
            rtol = max(torch.finfo(leaf.dtype).eps for leaf in tree.leaves(b)) ** 0.75
        norm = torch.linalg.vector_norm(vector)
        atol = torch.as_tensor(self.atol, dtype=norm.dtype, device=norm.device)
        return torch.maximum(rtol * norm, atol)


def _check_shapes(got: list[torch.Size], want: list[torch.Size]) -> None:
    if got != want:
        raise StructureError(
            "a linear map that is inverted returns what it takes",
            f"shapes {[tuple(s) for s in got]} for {[tuple(s) for s in want]}",
            "let the product have the structure and shapes of b",
        )


def ravel(value: PyTree) -> tuple[Tensor, Callable[[Tensor], PyTree]]:
    """All leaves as one vector in their widest dtype, at least float32, and the way back."""
    leaves, structure = tree.flatten(value)
    dtype = torch.float32
    for leaf in leaves:
        dtype = torch.promote_types(dtype, leaf.dtype)
    sizes = [leaf.numel() for leaf in leaves]

    def unravel(vector: Tensor) -> PyTree:
        parts = vector.split(sizes)
        return tree.unflatten(
            structure,
            [part.reshape(x.shape).to(x.dtype) for part, x in zip(parts, leaves, strict=True)],
        )

    if not leaves:
        return torch.zeros(0), lambda vector: value
    return torch.cat([leaf.reshape(-1).to(dtype) for leaf in leaves]), unravel
