"""Choosing entries, with a gradient for the scores that chose."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop import random
from funcloop._errors import ArgumentError
from funcloop._types import Key
from funcloop.ops._function import function
from funcloop.ops._straight_through import straight_through


def _mask(scores: Tensor, k: int) -> Tensor:
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    rank = torch.argsort(order, dim=-1)
    return (rank < k).to(scores.dtype)


_top_k = function(_mask, lambda grad, _, scores, k: (grad, None))


def top_k_mask(scores: Tensor, k: int) -> Tensor:
    """One where a score is among the `k` largest of the last dimension, otherwise zero.

    Exactly `k` entries are one: of equal scores the first come first, and NaN counts as largest.
    The gradient passes unchanged to all scores (Ramanujan et al. 2020, arXiv 1911.13299).

    Args:
        scores: Floating, shape (..., D).
        k: How many, from 0 to D.

    Returns:
        Shape (..., D), the dtype of the scores.

    Raises:
        ArgumentError: `k` lies outside [0, D].

    >>> import torch
    >>> top_k_mask(torch.tensor([0.1, 0.9, 0.9, 0.4]), 2)
    tensor([0., 1., 1., 0.])
    """
    if not (scores.ndim and 0 <= k <= scores.shape[-1]):
        raise ArgumentError(
            "top_k_mask chooses k of the last dimension",
            f"k={k} for shape {tuple(scores.shape)}",
            "give scores of shape (..., D) and 0 <= k <= D",
        )
    return _top_k(scores, k)


def _one_hot(logits: Tensor, noise: Tensor, temperature: Tensor | float) -> Tensor:
    choice = (logits + noise).argmax(-1, keepdim=True)
    classes = torch.arange(logits.shape[-1], device=logits.device)
    return (choice == classes).to(logits.dtype)


def _softmax(logits: Tensor, noise: Tensor, temperature: Tensor | float) -> Tensor:
    return ((logits + noise) / temperature).softmax(-1)


_sampled = straight_through(_one_hot, _softmax)


def gumbel_softmax(logits: Tensor, key: Key, temperature: Tensor | float = 1.0) -> Tensor:
    """A one-hot sample from `softmax(logits)`, with the gradient of the relaxed sample.

    With Gumbel noise `g` from the key the value is the one-hot `argmax(logits + g)`, and the
    derivatives, also by the temperature, are those of `softmax((logits + g) / temperature)`.

    Source: Jang et al. (2017), arXiv 1611.01144; Maddison et al. (2017), arXiv 1611.00712.

    Args:
        logits: Floating, shape (..., C).
        key: Key of shape (2,).
        temperature: Above zero; the smaller, the closer is the relaxed sample to a choice.

    Returns:
        Shape (..., C), the dtype of the logits: a single one in each row.

    >>> import torch
    >>> from funcloop import random
    >>> gumbel_softmax(torch.tensor([[0.0, 50.0], [50.0, 0.0]]), random.key(0))
    tensor([[0., 1.],
            [1., 0.]])
    """
    noise = random.gumbel(key, logits.shape, dtype=logits.dtype)
    return _sampled(logits, noise, temperature)
