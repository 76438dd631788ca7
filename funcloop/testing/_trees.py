"""Trees compared leaf by leaf, with the path and the worst element in the message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from funcloop._pytree import PyTree, flatten, paths_of, tree_map, unflatten

#: Relative and absolute tolerance by dtype for results that differ only in the order of roundings.
ROUNDING = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 2e-3,
    torch.complex128: 1e-12,
    torch.complex64: 1e-5,
}


def snapshot(tree: PyTree) -> PyTree:
    """A deep copy of every tensor of a tree.

    >>> import torch
    >>> x = torch.zeros(2)
    >>> copy = snapshot({"x": x})
    >>> copy["x"] is x, copy
    (False, {'x': tensor([0., 0.])})
    """
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, tree)


def assert_trees_equal(got: PyTree, want: PyTree) -> None:
    """Same structure, shapes, dtypes, devices and bits; NaN equals NaN.

    Raises:
        AssertionError: they differ; the message names the path and the worst element.

    >>> import torch
    >>> assert_trees_equal({"w": torch.ones(2)}, {"w": torch.ones(2)})
    """
    _compare(got, want, lambda dtype: 0.0)


def assert_trees_close(got: PyTree, want: PyTree, rtol: float | None = None) -> None:
    """Same structure, shapes, dtypes and devices, and values to rounding of the dtype.

    An element may differ by `tolerance * (1 + |want|)`.

    Args:
        got: What was computed.
        want: What it should be.
        rtol: The tolerance of floating leaves; by default `ROUNDING` of their dtype. Integers and
            bools are equal.

    Raises:
        AssertionError: they differ; the message names the path, the worst element and the
            tolerance.

    >>> import torch
    >>> assert_trees_close({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.0, 2.5])})
    Traceback (most recent call last):
    AssertionError: w: 1 of 2 elements differ; the worst, at [1], is 2.0 and should be 2.5
    (off by 0.5; the tolerance of torch.float32 is 1e-05)
    """
    _compare(got, want, lambda dtype: ROUNDING.get(dtype, 0.0) if rtol is None else rtol)


def assert_dtype_preserved(f: Callable[[Any], Any], tree: PyTree) -> None:
    """`f(tree)` has the structure of the tree, and each leaf its shape, dtype and device.

    Raises:
        AssertionError: it has not.

    >>> import torch
    >>> assert_dtype_preserved(torch.neg, torch.ones(2, dtype=torch.bfloat16))
    """
    leaves, structure = flatten(tree)
    results, got_structure = flatten(f(unflatten(structure, leaves)))
    assert got_structure == structure, _structures(got_structure, structure)
    for path, a, b in zip(paths_of(structure), results, leaves, strict=True):
        _assert_same_kind(a, b, path)


def _compare(got: PyTree, want: PyTree, tolerance: Callable[[torch.dtype], float]) -> None:
    got_leaves, got_structure = flatten(got)
    want_leaves, want_structure = flatten(want)
    assert got_structure == want_structure, _structures(got_structure, want_structure)
    for path, a, b in zip(paths_of(got_structure), got_leaves, want_leaves, strict=True):
        if not isinstance(b, Tensor):
            assert a == b, f"{path or 'the value'}: {a!r} and should be {b!r}"
            continue
        assert isinstance(a, Tensor), f"{path or 'the value'}: {type(a).__name__}, not a tensor"
        _assert_same_kind(a, b, path)
        exact = not (b.is_floating_point() or b.is_complex())
        _assert_close(a.detach(), b.detach(), 0.0 if exact else tolerance(b.dtype), path)


def _structures(got: Any, want: Any) -> str:
    return f"the leaves are {paths_of(got)} and should be {paths_of(want)}, in these containers"


def _assert_same_kind(a: Tensor, b: Tensor, path: str) -> None:
    for name in ("shape", "dtype", "device"):
        x, y = getattr(a, name), getattr(b, name)
        assert x == y, f"{path or 'the value'}: {name} {_short(x)} and should be {_short(y)}"


def _short(value: Any) -> Any:
    return tuple(value) if isinstance(value, torch.Size) else value


def _assert_close(a: Tensor, b: Tensor, tolerance: float, path: str) -> None:
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return
    dtype, wide = b.dtype, torch.complex128 if b.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    off = torch.where(same, 0, (a - b).abs()).nan_to_num(float("inf"), posinf=float("inf"))
    wrong = off > tolerance * (1 + b.abs().nan_to_num(posinf=0))
    if not bool(wrong.any()):
        return
    place = _place(torch.where(wrong, off, -1).argmax(), a.shape)
    raise AssertionError(
        f"{path or 'the value'}: {int(wrong.sum())} of {a.numel()} elements differ; the worst, at "
        f"{list(place)}, is {a[place].item()} and should be {b[place].item()}\n"
        f"(off by {off[place].item():.3g}; the tolerance of {dtype} is {tolerance:g})"
    )


def _place(flat: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    rest, place = int(flat), []
    for size in reversed(shape):
        rest, at = divmod(rest, size)
        place.append(at)
    return tuple(reversed(place))
