"""Inner products of per-sample gradients: TracIn influence, and cosines."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from funcloop._purity import no_outer_graph
from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.persample._engines import EngineName, engine_of, in_chunks
from funcloop.persample._grads import TensorFn
from funcloop.persample._numbers import sum_of


def influence(
    loss_fn: LossFn, *, microbatch: int | None = None, engine: EngineName = "auto"
) -> Callable[[Params, Buffers, Batch, Batch, Key], Tensor]:
    """TracIn scores of one checkpoint (Pruthi et al. 2020, arXiv 2002.08484), without step size.

    `score[i, j]` is the inner product of the gradients of training example i and test example j:
    to first order, what a step on i lowers the loss of j by, per unit of learning rate. Sum it over
    checkpoints, each times its learning rate. A training example that opposes its own kind, or
    whose score with itself is large, is a candidate for a wrong label.

    Args:
        loss_fn: Losses of shape (B,).
        microbatch: At most so many training gradients are held at a time; those of the test batch
            are all held.
        engine: See `clipped`.

    Returns:
        `(params, buffers, train, test, key) -> (N, M)`.

    >>> import torch
    >>> fn = influence(lambda params, buffers, batch, key: batch @ params["w"])
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> fn({"w": torch.zeros(2)}, {}, x, x[1:], None)
    tensor([[0.],
            [4.]])
    """
    run = engine_of(engine)

    def influence_fn(
        params: Params, buffers: Buffers, train: Batch, test: Batch, key: Key
    ) -> Tensor:
        with no_outer_graph():
            (tested,) = in_chunks(run, loss_fn, params, buffers, test, key)
            return torch.cat(
                [
                    sum_of(
                        [
                            a.pairwise(b)
                            for a, b in zip(units.gradients, tested.gradients, strict=True)
                        ]
                    )
                    for units in in_chunks(
                        run, loss_fn, params, buffers, train, key, None, microbatch
                    )
                ]
            )

    return influence_fn


def cosine_similarity(loss_fn: LossFn, *, engine: EngineName = "auto") -> TensorFn:
    """The cosine between the gradients of every two examples; zero where one is zero.

    Args:
        loss_fn: Losses of shape (B,).
        engine: See `clipped`.

    Returns:
        `(params, buffers, batch, key) -> (B, B)`.

    >>> import torch
    >>> fn = cosine_similarity(lambda params, buffers, batch, key: batch @ params["w"])
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    >>> fn({"w": torch.zeros(2)}, {}, x, None)
    tensor([[ 1.,  0., -1.],
            [ 0.,  1.,  0.],
            [-1.,  0.,  1.]])
    """
    products = influence(loss_fn, engine=engine)

    def cosine_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> Tensor:
        with no_outer_graph():
            inner = products(params, buffers, batch, batch, key)
            squares = inner.diagonal()
            lengths = torch.where(squares > 0, squares, 1).sqrt()
            return inner / lengths[:, None] / lengths[None, :]

    return cosine_fn
