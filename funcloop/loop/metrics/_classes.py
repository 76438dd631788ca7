"""Accuracy and top-k accuracy from scores."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from funcloop._errors import ArgumentError, ShapeError
from funcloop.loop.metrics._mean import Mean, mean_of


def accuracy(output: Tensor, target: Tensor, weight: Tensor | None = None) -> Mean:
    """The share of targets with the highest score.

    Args:
        output: Scores, shape (..., C).
        target: Class indices, shape (...). One outside 0..C-1 with a weight makes the result NaN.
        weight: Of the target's leading dimensions; ones by default.

    Raises:
        ShapeError: the target has another shape than the scores without their last dimension.

    >>> import torch
    >>> scores = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    >>> accuracy(scores, torch.tensor([1, 1])).compute()
    tensor(0.5000, dtype=torch.float64)
    """
    check_scores(output, target)
    hit = output.argmax(-1) == target
    return mean_of(only_known(hit, target, output), weight)


def top_k(k: int) -> Callable[[Tensor, Tensor, Tensor | None], Mean]:
    """The share of targets among the `k` highest scores.

    Among equal scores the lower index comes first. A NaN is never among the highest.

    Args:
        k: How many scores count, at least one.

    Returns:
        A metric of scores (..., C) and class indices (...), as `accuracy` is.

    Raises:
        ArgumentError: `k` is less than one.

    >>> import torch
    >>> scores = torch.tensor([[0.1, 0.3, 0.6], [0.2, 0.7, 0.1]])
    >>> top_k(2)(scores, torch.tensor([1, 2])).compute()
    tensor(0.5000, dtype=torch.float64)
    """
    if k < 1:
        raise ArgumentError("at least one score counts", f"k={k}", "give a positive number")

    def metric(output: Tensor, target: Tensor, weight: Tensor | None = None) -> Mean:
        check_scores(output, target)
        classes = output.shape[-1]
        index = target.clamp(0, classes - 1).unsqueeze(-1)
        own = output.gather(-1, index)
        before = torch.arange(classes, device=output.device) < index
        higher = (output > own) | ((output == own) & before)
        hit = (higher.sum(-1) < k) & ~own.squeeze(-1).isnan()
        return mean_of(only_known(hit, target, output), weight)

    return metric


def only_known(values: Tensor, target: Tensor, output: Tensor) -> Tensor:
    """Values of shape (...), NaN where the target is no class of the output's (..., C) scores.

    A padded target such as -100 counts nothing with weight zero. With a weight it is a mistake, and
    a graph cannot raise.
    """
    known = (target >= 0) & (target < output.shape[-1])
    return torch.where(known, values.double(), torch.nan)


def check_scores(output: Tensor, target: Tensor) -> None:
    """Refuse scores and class indices that do not belong together.

    Raises:
        ShapeError: the target has another shape than the scores without their last dimension.
    """
    if output.ndim == 0 or output.shape[:-1] != target.shape:
        raise ShapeError(
            "scores (..., C) go with class indices (...)",
            f"output of shape {tuple(output.shape)}, target of {tuple(target.shape)}",
            "move the class dimension of the output to the end, and give indices, not one-hot rows",
        )
