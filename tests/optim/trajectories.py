"""Runs of torch.optim and of a transform over the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from funcloop import optim
from funcloop._types import Transform

Params = dict[str, Tensor]


def start(dtype: torch.dtype = torch.float64, device: Any = "cpu", seed: int = 0) -> Params:
    """A matrix, a vector and a scalar."""
    g = torch.Generator().manual_seed(seed)
    shapes = {"w": (3, 4), "b": (4,), "s": ()}
    return {
        k: torch.randn(shape, generator=g, dtype=torch.float64).to(device, dtype)
        for k, shape in shapes.items()
    }


def gradients(params: Params, steps: int, seed: int = 1) -> list[Params]:
    """One tree of gradients a step; the first element of each matrix is always zero."""
    g = torch.Generator().manual_seed(seed)
    trees = []
    for _ in range(steps):
        tree = {
            k: torch.randn(p.shape, generator=g, dtype=torch.float64) for k, p in params.items()
        }
        tree["w"][0, 0] = 0.0
        trees.append({k: v.to(params[k]) for k, v in tree.items()})
    return trees


def run(tx: Transform, params: Params, grads: Iterable[Params], **extra: Any) -> Params:
    state = tx.init(params)
    for g in grads:
        updates, state = tx.update(g, state, params, **extra)
        params = optim.apply_updates(params, updates)
    return params


def run_torch(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], params: Params, grads: Iterable[Params]
) -> Params:
    leaves = {k: torch.nn.Parameter(p.clone()) for k, p in params.items()}
    optimizer = make(list(leaves.values()))
    for g in grads:
        for k, p in leaves.items():
            p.grad = g[k].clone()
        optimizer.step()
    return {k: p.detach() for k, p in leaves.items()}


def distance(got: Params, want: Params) -> float:
    """Largest error of a leaf, relative to its largest element."""
    return max(
        float((got[k] - want[k]).abs().max() / want[k].abs().max().clamp_min(1e-30)) for k in want
    )
