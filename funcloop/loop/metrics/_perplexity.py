"""Perplexity: the exponential of the mean negative log-likelihood."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from funcloop.loop.metrics._classes import check_scores, only_known
from funcloop.loop.metrics._mean import Mean, mean_of


class Perplexity(Mean):
    """The sums of a mean negative log-likelihood, in nats."""

    def compute(self) -> Tensor:
        """`exp(total / weight)`; NaN where nothing weighed anything."""
        return super().compute().exp()


def perplexity(output: Tensor, target: Tensor, weight: Tensor | None = None) -> Perplexity:
    """How many equally likely classes (tokens) would be as hard to guess.

    Give tokens a weight of shape (B, T), a mask, where sequences differ in length; a weight of
    shape (B,) averages within each sequence first.

    Args:
        output: Logits, shape (..., C).
        target: Class indices, shape (...). One outside 0..C-1 with a weight makes the result NaN.
        weight: Of the target's leading dimensions; ones by default.

    Raises:
        ShapeError: the target has another shape than the logits without their last dimension.

    >>> import torch
    >>> perplexity(torch.zeros(1, 3, 8), torch.tensor([[0, 1, 2]])).compute()
    tensor(8.0000, dtype=torch.float64)
    """
    check_scores(output, target)
    classes = output.shape[-1]
    logits = output.reshape(-1, classes)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(logits, target.clamp(0, classes - 1).reshape(-1), reduction="none")
    return Perplexity(*mean_of(only_known(losses.reshape(target.shape), target, output), weight))
