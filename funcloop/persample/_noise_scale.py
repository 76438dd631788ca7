"""The gradient noise scale (McCandlish et al. 2018, arXiv 1812.06162)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from funcloop._errors import ShapeError
from funcloop._purity import no_outer_graph
from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.persample._engine import weights_of_units
from funcloop.persample._engines import EngineName, engine_of, in_chunks
from funcloop.persample._numbers import sum_of, wide


class NoiseScale(NamedTuple):
    """The gradient noise scale (McCandlish et al. 2018, arXiv 1812.06162).

    Attributes:
        noise_scale: `trace / squared_norm`: roughly the batch size beyond which larger batches stop
            paying. It can be negative or huge where the batch is too small to tell.
        trace: The trace of the covariance of the gradients, without bias.
        squared_norm: The squared norm of the true gradient, without bias.
    """

    noise_scale: Tensor
    trace: Tensor
    squared_norm: Tensor


def noise_scale(
    loss_fn: LossFn, *, engine: EngineName = "auto"
) -> Callable[[Params, Buffers, Batch, Key], NoiseScale]:
    """The gradient noise scale, from one batch, by the norms of its examples' gradients.

    With `m = mean |g_n|^2` and `q = |mean g_n|^2` over B examples, the trace is
    `(m - q) B / (B - 1)` and the squared norm `q - trace / B`. Examples of weight zero are left
    out; the others count one.

    Args:
        loss_fn: Losses of shape (B,); at least two.
        engine: See `clipped`.

    Returns:
        `(params, buffers, batch, key) -> NoiseScale`, each 0-d.

    Raises:
        ShapeError: the batch has fewer than two examples.

    >>> import torch
    >>> fn = noise_scale(lambda params, buffers, batch, key: batch @ params["w"])
    >>> fn({"w": torch.zeros(2)}, {}, torch.tensor([[3.0, 0.0], [1.0, 0.0]]), None)
    NoiseScale(noise_scale=tensor(0.6667), trace=tensor(2.), squared_norm=tensor(3.))
    """
    run = engine_of(engine)

    def noise_scale_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> NoiseScale:
        with no_outer_graph():
            (units,) = in_chunks(run, loss_fn, params, buffers, batch, key)
            if units.losses.shape[0] < 2:
                raise ShapeError(
                    "a noise scale compares examples",
                    f"a batch of {units.losses.shape[0]}",
                    "give at least two examples",
                )
            present = (weights_of_units(units) != 0).to(units.losses.dtype)
            count = present.sum()
            share = present / count
            squares = sum_of([g.squared_norm() for g in units.gradients])
            mean_square = torch.where(present == 0, 0, squares * share).sum()
            means = [g.weighted(share, True) for g in units.gradients]
            square_mean = sum_of([(wide(m) * wide(m).conj()).real.sum() for m in means])
            trace = (mean_square - square_mean) * count / (count - 1)
            squared_norm = square_mean - trace / count
        return NoiseScale(trace / squared_norm, trace, squared_norm)

    return noise_scale_fn
