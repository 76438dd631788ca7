"""Is the pure update alone as fast as torch.optim's, at 25M parameters in 160 tensors?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import funcloop as fl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TENSORS, SIZE = 160, 25_000_000 // 160

Tree = dict[str, Tensor]


def trees() -> tuple[Tree, Tree]:
    """Params and gradients."""
    g = torch.Generator(DEVICE).manual_seed(0)
    names = [f"layers.{i}.weight" for i in range(TENSORS)]
    params = {k: torch.randn(SIZE, generator=g, device=DEVICE) for k in names}
    return params, {k: 0.1 * torch.randn(SIZE, generator=g, device=DEVICE) for k in names}


def pure(jitted: bool) -> Callable[[], Tensor]:
    tx = fl.optim.adamw(1e-3)
    params, grads = trees()
    state = params, tx.init(params)

    def update(state, grads):
        params, opt_state = state
        updates, opt_state = tx.update(grads, opt_state, params)
        return fl.optim.apply_updates(params, updates), opt_state

    step = fl.jit(update, donate=0) if jitted else torch.no_grad()(update)

    def run() -> Tensor:
        nonlocal state
        state = step(state, grads)
        return next(iter(state[0].values()))

    return run


def imperative(**options: bool) -> Callable[[], Tensor]:
    params, grads = trees()
    leaves = [torch.nn.Parameter(p) for p in params.values()]
    for leaf, g in zip(leaves, grads.values(), strict=True):
        leaf.grad = g
    optimizer = torch.optim.AdamW(leaves, lr=1e-3, **options)

    def run() -> Tensor:
        optimizer.step()
        return leaves[0]

    return run


def assert_same(rivals: dict[str, Callable[[], Tensor]]) -> None:
    ends = [[run().detach().clone() for _ in range(3)][-1] for run in rivals.values()]
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-5, atol=1e-6)


def test_jitted_update(compare):
    rivals = {"jit, donated": pure(jitted=True), "fused": imperative(fused=True)}
    assert_same(rivals)
    compare("AdamW alone, 25M in 160 tensors", rivals)


def test_eager_update(compare):
    rivals = {"eager": pure(jitted=False), "foreach": imperative(foreach=True)}
    assert_same(rivals)
    compare("AdamW alone, 25M in 160 tensors", rivals, rounds=15)
