"""Per-sample gradients themselves, their norms, and their weighted sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError
from funcloop._purity import no_outer_graph
from funcloop._types import Batch, Buffers, Key, LossFn, Params, PyTree
from funcloop.persample._clip import root
from funcloop.persample._engine import Gradient, weights_of_units
from funcloop.persample._engines import EngineName, engine_of, in_chunks
from funcloop.persample._factor import Dense
from funcloop.persample._numbers import sum_of, wide

_REDUCTIONS = ("sum", "mean", "second_moment")
#: From the stacked gradients of some examples to a tree that adds up over the examples.
Reduce: TypeAlias = Callable[[PyTree], PyTree]
TreeFn: TypeAlias = Callable[[Params, Buffers, Batch, Key], PyTree]
TensorFn: TypeAlias = Callable[[Params, Buffers, Batch, Key], Tensor]


def grads(
    loss_fn: LossFn,
    *,
    microbatch: int | None = None,
    reduce: Literal["sum", "mean", "second_moment"] | Reduce | None = None,
    engine: EngineName = "auto",
    unit_axis: int | None = None,
) -> TreeFn:
    """The gradient of every example's loss.

    Args:
        loss_fn: Losses of shape (B,).
        microbatch: At most so many examples at a time. With `reduce`, no more gradients than these
            are held; the result is the same.
        reduce: None stacks the gradients. `sum` is `sum_n w_n g_n`, `mean` divides it by the total
            weight, `second_moment` is the weighted mean of `g_n ** 2`. A function gets the stacked
            gradients of some examples, and what it returns is added up.
        engine: See `clipped`.
        unit_axis: See `clipped`.

    Returns:
        `(params, buffers, batch, key) -> tree` with leaves of shape (B, *shape), or what `reduce`
        makes of them.

    >>> import torch
    >>> def loss_fn(params, buffers, batch, key):
    ...     return batch * params["w"] ** 2
    >>> grads(loss_fn)({"w": torch.tensor(2.0)}, {}, torch.tensor([1.0, 3.0]), None)
    {'w': tensor([ 4., 12.])}
    >>> grads(loss_fn, reduce="mean")({"w": torch.tensor(2.0)}, {}, torch.tensor([1.0, 3.0]), None)
    {'w': tensor(8.)}
    """
    if isinstance(reduce, str) and reduce not in _REDUCTIONS:
        raise ArgumentError(
            "reduce= folds gradients", repr(reduce), f"use one of {list(_REDUCTIONS)} or a function"
        )
    run = engine_of(engine)

    def grads_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> PyTree:
        structure = tree.structure(params)
        parts, weights = [], []
        with no_outer_graph():
            for units in in_chunks(
                run, loss_fn, params, buffers, batch, key, unit_axis, microbatch
            ):
                if isinstance(reduce, str):
                    weight = weights_of_units(units)
                    weights.append(weight.sum())
                    parts.append(_folded(units.gradients, weight, reduce == "second_moment"))
                    continue
                rows = [gradient.rows() for gradient in units.gradients]
                if not _batch_size(batch, unit_axis):
                    rows = [row[:0] for row in rows]
                parts.append(rows if reduce is None else reduce(tree.unflatten(structure, rows)))
            if reduce is None:
                return tree.unflatten(structure, [torch.cat(p) for p in zip(*parts, strict=True)])
            total = _add_up(parts)
            if callable(reduce):
                return total
            if reduce != "sum":
                mass = sum_of(weights)
                mass = torch.where(mass == 0, 1, mass)
                total = [x / mass for x in total]
            return tree.map(lambda x, p: x.to(p.dtype), tree.unflatten(structure, total), params)

    return grads_fn


def norms(
    loss_fn: LossFn,
    *,
    per_layer: bool = False,
    microbatch: int | None = None,
    engine: EngineName = "auto",
    unit_axis: int | None = None,
) -> TreeFn:
    """The L2 norm of every example's gradient, added up in at least float32.

    Args:
        loss_fn: Losses of shape (B,).
        per_layer: A norm for each parameter, in a tree like the params.
        microbatch: At most so many examples at a time.
        engine: See `clipped`.
        unit_axis: See `clipped`.

    Returns:
        `(params, buffers, batch, key) -> (B,)`, or a tree of these.

    >>> import torch
    >>> def loss_fn(params, buffers, batch, key):
    ...     return batch @ params["w"]
    >>> batch = torch.tensor([[6.0, 8.0], [0.0, 1.0]])
    >>> norms(loss_fn)({"w": torch.zeros(2)}, {}, batch, None)
    tensor([10.,  1.])
    """
    run = engine_of(engine)

    def norms_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> PyTree:
        with no_outer_graph():
            chunks = [
                [gradient.squared_norm() for gradient in units.gradients]
                for units in in_chunks(
                    run, loss_fn, params, buffers, batch, key, unit_axis, microbatch
                )
            ]
            squares = [torch.cat(parts) for parts in zip(*chunks, strict=True)]
            if not _batch_size(batch, unit_axis):
                squares = [s[:0] for s in squares]
            if per_layer:
                return tree.unflatten(tree.structure(params), [root(s) for s in squares])
            if not squares:
                return torch.zeros(_batch_size(batch, unit_axis))
            return root(sum_of(squares))

    return norms_fn


def weighted(
    loss_fn: LossFn, *, engine: EngineName = "auto", unit_axis: int | None = None
) -> Callable[[Params, Buffers, Batch, Key, Tensor], PyTree]:
    """The sum of the examples' gradients with given coefficients.

    Args:
        loss_fn: Losses of shape (B,).
        engine: See `clipped`.
        unit_axis: See `clipped`.

    Returns:
        `(params, buffers, batch, key, coefficients) -> tree`, with coefficients of shape (B,). It
        is linear in them, and an example of coefficient zero adds nothing, also not a NaN.

    >>> import torch
    >>> def loss_fn(params, buffers, batch, key):
    ...     return batch * params["w"]
    >>> batch, coefficients = torch.tensor([4.0, 7.0]), torch.tensor([0.5, 0.0])
    >>> weighted(loss_fn)({"w": torch.tensor(1.0)}, {}, batch, None, coefficients)
    {'w': tensor(2.)}
    """
    run = engine_of(engine)

    def weighted_fn(
        params: Params, buffers: Buffers, batch: Batch, key: Key, coefficients: Tensor
    ) -> PyTree:
        with no_outer_graph():
            if not _batch_size(batch, unit_axis):
                return tree.zeros_like(params)
            (units,) = in_chunks(run, loss_fn, params, buffers, batch, key, unit_axis)
            sums = [g.weighted(coefficients, True) for g in units.gradients]
            total = tree.unflatten(tree.structure(params), sums)
            return tree.map(lambda x, p: x.to(p.dtype), total, params)

    return weighted_fn


def _batch_size(batch: Batch, unit_axis: int | None) -> int:
    return tree.leaves(batch)[0].shape[unit_axis or 0]


def _folded(gradients: Sequence[Gradient], weight: Tensor, squares: bool) -> list[Tensor]:
    """`sum_n w_n g_n`, or `sum_n w_n |g_n| ** 2`."""
    if not squares:
        return [gradient.weighted(weight, True) for gradient in gradients]
    rows = [wide(gradient.rows()) for gradient in gradients]
    return [Dense((row * row.conj()).real).weighted(weight, True) for row in rows]


def _add_up(parts: Sequence[PyTree]) -> PyTree:
    total = parts[0]
    for part in parts[1:]:
        total = tree.map(torch.add, total, part)
    return total
