"""Naive float64 oracles, one section a package: slow, obvious, and written without funcloop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# ----------------------------------------------------------------------------------- estimators


def weighted_mean_gradient(
    losses: Callable[..., Tensor], weight: Tensor, params: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The weighted mean of the losses and its gradient, one example at a time."""
    leaves = [p.detach().clone().requires_grad_() for p in params]
    total, grads = torch.zeros(()), [torch.zeros_like(p) for p in leaves]
    for i, w in enumerate(weight):
        loss = losses(*leaves)[i]
        total = total + w * loss.detach()
        for g, d in zip(grads, torch.autograd.grad(loss, leaves), strict=True):
            g += w * d
    return total / weight.sum(), [g / weight.sum() for g in grads]
