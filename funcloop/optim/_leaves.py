"""The one loop over leaves that every transform runs: precision, complex numbers and absent leaves.

A transform states its formula for one leaf, in real arithmetic of at least float32. Everything that
is the same for all of them happens here, once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ShapeError, UnsupportedError
from funcloop._pytree import (
    PyTree,
    close_node,
    flatten,
    flatten_like,
    open_node,
    paths_of,
    unflatten,
)

#: Stands where a tree has no gradient for a leaf that another tree has.
ABSENT = object()


def map_leaves(
    formula: Callable[..., Any],
    updates: PyTree,
    *,
    state: Sequence[PyTree] = (),
    factors: Sequence[PyTree] = (),
    reads: Sequence[PyTree] = (),
    scalars: Sequence[Any] = (),
) -> tuple[PyTree, ...]:
    """Run `formula(update, *state, *factors, *reads, *scalars)` on every leaf.

    The formula returns `(update, *state, *factors)`.

    Args:
        formula: Sees real tensors of one dtype, at least float32: the widest of the leaf's update,
            state and reads. A complex leaf is seen as torch.view_as_real shows it, as torch.optim
            does. Without state it may return the update alone.
        updates: Gradients or updates. None in the place of a leaf means that it has no gradient:
            its update stays None and its state stays as it is.
        state: Trees with the structure and shapes of the params, returned anew in their own
            dtypes.
        factors: The same, with shapes of their own.
        reads: Trees that are only read, such as the params.
        scalars: Python numbers, passed on as they are, or 0-d tensors, cast to the leaf's dtype so
            that they never promote it.

    Returns:
        The updates, in the dtype of the arithmetic, and one tree for each of `state`, `factors`.
    """
    columns, structure = align(updates, [*state, *factors, *reads])
    kept, cast = len(state) + len(factors), _Scalars(scalars)
    rows = []
    for path, update, *others in zip(paths_of(structure), *columns, strict=True):
        if update is ABSENT:
            rows.append((None, *others[:kept]))
            continue
        check_leaf(path, update, others[: len(state)] + others[kept:])
        rows.append(_leaf(formula, update, others, kept, cast))
    results = zip(*rows, strict=True) if rows else [()] * (1 + kept)
    return tuple(unflatten(structure, list(result)) for result in results)


def align(updates: PyTree, others: Sequence[PyTree]) -> tuple[list[list[Any]], Any]:
    """The leaves of all trees in one order, and the structure that they share."""
    leaves, structure = flatten(updates)
    if not others:
        return [leaves], structure
    wanted = tree.structure(others[0])
    if structure != wanted:
        leaves = flatten_like(wanted, _mark_absent(updates, others[0]), "updates")
    rest = [flatten_like(wanted, other, "state") for other in others]
    return [leaves, *rest], wanted


def _mark_absent(updates: PyTree, like: PyTree) -> PyTree:
    """`updates` with a marker wherever it is None and `like` has leaves."""
    if updates is None:
        return tree.map(lambda _: ABSENT, like)
    here, there = open_node(updates), open_node(like)
    if here is None or there is None or set(here.names()) != set(there.names()):
        return updates  # the mismatch, if it is one, is named by flatten_like
    places = dict(zip(there.names(), there.children, strict=True))
    parts = zip(here.names(), here.children, strict=True)
    return close_node(
        here._replace(children=[_mark_absent(part, places[name]) for name, part in parts])
    )


class _Scalars:
    """Scalars in the dtype and on the device of a leaf, each cast once."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values
        self.cache: dict[Any, list[Any]] = {}

    def like(self, leaf: Tensor) -> list[Any]:
        where = leaf.dtype, leaf.device
        if where not in self.cache:
            self.cache[where] = [
                value.to(device=leaf.device, dtype=leaf.dtype)
                if isinstance(value, Tensor)
                else value
                for value in self.values
            ]
        return self.cache[where]


def _leaf(
    formula: Callable[..., Any], update: Tensor, others: list[Tensor], kept: int, scalars: _Scalars
) -> tuple[Tensor, ...]:
    dtype = _wide(tuple([leaf.dtype for leaf in (update, *others)]))
    tensors = [_cast(leaf, dtype) for leaf in (update, *others)]
    if dtype.is_complex:
        tensors = [torch.view_as_real(leaf.resolve_conj()) for leaf in tensors]
    results = formula(*tensors, *scalars.like(tensors[0]))
    if isinstance(results, Tensor):
        results = (results,)
    if dtype.is_complex:
        results = [torch.view_as_complex(result) for result in results]
    new_update, *new = results
    return new_update, *[_cast(x, old.dtype) for x, old in zip(new, others[:kept], strict=True)]


@functools.cache
def _wide(dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
    """The dtype of the arithmetic: the widest, at least float32."""
    return functools.reduce(torch.promote_types, dtypes, torch.float32)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor.to(dtype)`, without the call where it would do nothing: there are many leaves."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def check_leaf(path: str, update: Tensor, others: Sequence[Tensor]) -> None:
    if update.layout is not torch.strided:
        raise UnsupportedError(
            "an optimizer takes dense gradients",
            f"{path} has layout {update.layout}",
            "build the layer with sparse=False, or call .to_dense() on its gradient",
        )
    for other in others:
        if other.shape != update.shape:
            raise ShapeError(
                "an update has the shape of its param",
                f"{path}: {tuple(update.shape)} for {tuple(other.shape)}",
                "take the gradient with respect to these params, and init the state from them",
            )


def zeros_like(params: PyTree) -> PyTree:
    """Zeros with the structure of the params, each leaf in at least float32."""
    return tree.map(
        lambda p: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)), params
    )


def add_square(x: Tensor, g: Tensor, share: Any) -> Tensor:
    """`x + share * g * g`, in one pass where the share is a number."""
    if isinstance(share, Tensor):
        return torch.addcmul(x, g, g * share)
    return torch.addcmul(x, g, g, value=share)


def safe_sqrt(x: Tensor) -> Tensor:
    """`sqrt(x)` for x >= 0, with derivative zero (not infinite) at zero.

    Below the smallest normal number the root is that number's, 1e-19 in float32.
    """
    return x.clamp_min(torch.finfo(x.dtype).tiny).sqrt()


def wide_copy(params: PyTree) -> PyTree:
    """The params in at least float32, in memory of their own."""
    return tree.map(lambda p: p.to(torch.promote_types(p.dtype, torch.float32), copy=True), params)


def full_like(params: PyTree, value: float | Tensor) -> PyTree:
    """`value` everywhere, each leaf in at least float32; in both parts of a complex leaf."""
    return tree.map(
        lambda zero: (
            zero + (torch.complex(*[torch.as_tensor(value, dtype=zero.real.dtype)] * 2))
            if zero.is_complex()
            else (zero + value).to(zero.dtype)
        ),
        zeros_like(params),
    )


def refuse_complex(params: PyTree, name: str) -> None:
    """Refuse complex leaves where the algorithm has no meaning for them."""
    for path, leaf in tree.items(params):
        if leaf.is_complex():
            raise UnsupportedError(
                f"{name} takes real params",
                f"{path} is {leaf.dtype}",
                "train its torch.view_as_real, or give that leaf adam through optim.partition",
            )
