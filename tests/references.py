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


# ---------------------------------------------------------------------------------- persample


def per_sample_gradients(loss_of_one, params, batch):
    """One `torch.autograd.grad` for each example: by name, (B, *shape). `batch` is one tensor."""
    rows = []
    for example in batch:
        leaves = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
        loss = loss_of_one(leaves, example)
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        rows.append(
            [torch.zeros_like(p) if g is None else g for p, g in zip(params.values(), grads)]  # noqa: B905
        )
    return {name: torch.stack(gs) for name, gs in zip(params, zip(*rows))}  # noqa: B905


def clipped_mean(rows, max_norm, weight=None):
    """Rows by name, (B, ...): one norm over all tensors of an example; weighted mean after it."""
    size = next(iter(rows.values())).shape[0]
    weight = torch.ones(size, dtype=torch.float64) if weight is None else weight
    total = {name: torch.zeros_like(r[0]) for name, r in rows.items()}
    for n in range(size):
        norm = sum(float(r[n].double().square().sum()) for r in rows.values()) ** 0.5
        factor = max_norm / norm if norm > max_norm else 1.0
        for name, r in rows.items():
            total[name] += float(weight[n]) * factor * r[n]
    return {name: t / float(weight.sum()) for name, t in total.items()}
