"""Examples ranked by the size of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.persample._engines import EngineName
from funcloop.persample._grads import norms


class Outliers(NamedTuple):
    """Examples, the most unusual first.

    Attributes:
        indices: int64, (k,).
        scores: (k,).
    """

    indices: Tensor
    scores: Tensor


def outliers(
    loss_fn: LossFn, k: int, *, microbatch: int | None = None, engine: EngineName = "auto"
) -> Callable[[Params, Buffers, Batch, Key], Outliers]:
    """The `k` examples with the largest gradients; a gradient that is not finite comes first.

    Args:
        loss_fn: Losses of shape (B,).
        k: How many.
        microbatch: At most so many examples at a time.
        engine: See `clipped`.

    Returns:
        `(params, buffers, batch, key) -> Outliers`.

    >>> import torch
    >>> fn = outliers(lambda params, buffers, batch, key: batch * params["w"], k=2)
    >>> fn({"w": torch.tensor(1.0)}, {}, torch.tensor([1.0, -9.0, 3.0]), None).indices
    tensor([1, 2])
    """
    norms_fn = norms(loss_fn, microbatch=microbatch, engine=engine)

    def outliers_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> Outliers:
        score = norms_fn(params, buffers, batch, key)
        rank = torch.where(score.isfinite(), score, torch.inf)
        index = rank.topk(min(k, score.shape[0])).indices
        return Outliers(index, score[index])

    return outliers_fn
