"""Runs a function beside its compiled graph, and names the first output that differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from funcloop._errors import CompileError
from funcloop._pytree import Structure, flatten, paths_of, unflatten

#: How many calls `jit(..., debug=True)` checks.
CHECKED_CALLS = 3
#: Largest error beyond rounding, relative to the largest entry of the leaf.
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}


def expected(f: Callable[..., Any], leaves: Sequence[Any], structure: Structure | str) -> Any:
    """What the plain function returns for copies of these arguments."""
    copies = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = unflatten(structure, copies)
    return f(*args, **kwargs)


def check_equal(got: Any, want: Any) -> None:
    """Refuse a compiled result that differs from the eager one beyond rounding.

    Raises:
        CompileError: it does; the error names the first leaf.
    """
    (ours, structure), (theirs, _) = flatten(got), flatten(want)
    for path, a, b in zip(paths_of(structure), ours, theirs, strict=True):
        if isinstance(a, Tensor) and (difference := _difference(a, b.detach())):
            raise CompileError(
                "a compiled function gives what the plain one gives",
                f"output {path or 'of the function'} differs: {difference}",
                'compare with backend="aot_eager", and report it: a compiler is wrong',
            )


def _difference(got: Tensor, want: Tensor) -> str:
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} of {tuple(got.shape)} for {want.dtype} of {tuple(want.shape)}"
    if got.numel() == 0:
        return ""
    tolerance = TOLERANCE.get(got.real.dtype if got.is_complex() else got.dtype)
    if tolerance is None:
        wrong = got != want
    else:
        scale = want.abs().nan_to_num(0.0, 0.0, 0.0).amax()
        wrong = ~torch.isclose(
            got, want, rtol=tolerance, atol=float(tolerance * scale), equal_nan=True
        )
    if not wrong.any():
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    count = int(wrong.sum())
    return f"{count} of {got.numel()} entries, at {place} {got[place]} instead of {want[place]}"
