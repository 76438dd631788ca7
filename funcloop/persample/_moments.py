"""Mean, second moment and variance of per-sample gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._purity import no_outer_graph
from funcloop._types import Batch, Buffers, Key, LossFn, Params, PyTree
from funcloop.persample._engine import weights_of_units
from funcloop.persample._engines import EngineName, engine_of, in_chunks
from funcloop.persample._grads import TreeFn
from funcloop.persample._numbers import wide


class Moments(NamedTuple):
    """The moments of the examples' gradients.

    Attributes:
        mean: The weighted mean gradient.
        second_moment: The weighted mean of the squares.
        variance: `second_moment - mean ** 2`, not below zero; over the examples of the batch, with
            no correction for their number.
    """

    mean: PyTree
    second_moment: PyTree
    variance: PyTree


def moments(
    loss_fn: LossFn, *, microbatch: int | None = None, engine: EngineName = "auto"
) -> TreeFn:
    """Mean, second moment and variance of the examples' gradients, elementwise.

    Args:
        loss_fn: Losses of shape (B,).
        microbatch: At most so many gradients are held at a time.
        engine: See `clipped`.

    Returns:
        `(params, buffers, batch, key) -> Moments`, each a tree like the params.

    >>> import torch
    >>> fn = moments(lambda params, buffers, batch, key: params["w"] * batch)
    >>> fn({"w": torch.tensor(1.0)}, {}, torch.tensor([1.0, 3.0]), None).variance
    {'w': tensor(1.)}
    """
    run = engine_of(engine)

    def moments_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> Moments:
        leaves, structure = tree.flatten(params)
        first = [torch.zeros_like(wide(p)) for p in leaves]
        second, mass = [x.abs() for x in first], torch.zeros(())
        with no_outer_graph():
            for units in in_chunks(run, loss_fn, params, buffers, batch, key, None, microbatch):
                weight = weights_of_units(units)
                mass = mass.to(weight) + weight.sum()
                for i, gradient in enumerate(units.gradients):
                    rows = wide(gradient.rows())
                    w = weight.to(rows.dtype).reshape(-1, *[1] * (rows.ndim - 1))
                    rows = torch.where(w == 0, 0, rows)
                    first[i] = first[i] + (w * rows).sum(0)
                    second[i] = second[i] + (w * rows * rows.conj()).sum(0).real
            mass = torch.where(mass == 0, 1, mass)
            mean, square = [x / mass for x in first], [x / mass for x in second]
            variance = [
                (s - (m * m.conj()).real).clamp(min=0) for s, m in zip(square, mean, strict=True)
            ]

        def like_params(values: list[Tensor]) -> PyTree:
            return tree.unflatten(
                structure, [x.to(p.dtype) for x, p in zip(values, leaves, strict=True)]
            )

        return Moments(like_params(mean), like_params(square), like_params(variance))

    return moments_fn
