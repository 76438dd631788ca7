"""MAML as a loop with torch.autograd.grad(create_graph=True) in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

F64 = torch.float64
Params = dict[str, Tensor]
#: `(params, grads, state, count) -> (params, state)`.
Rule = Callable[[Params, Params, dict, int], tuple[Params, dict]]


def net(params: Params, x: Tensor) -> Tensor:
    return torch.tanh(x @ params["body.weight"] + params["body.bias"]) @ params["head.weight"]


def start(seed: int = 0) -> Params:
    g = torch.Generator().manual_seed(seed)
    shapes = {"body.weight": (2, 5), "body.bias": (5,), "head.weight": (5, 1)}
    return {k: torch.randn(s, generator=g, dtype=F64) for k, s in shapes.items()}


def task_batch(tasks: int = 3, shots: int = 4, seed: int = 0) -> tuple[Sequence[Tensor], ...]:
    g = torch.Generator().manual_seed(seed)

    def part(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(tasks, n, 2, generator=g, dtype=F64)
        return x, torch.randn(tasks, n, 1, generator=g, dtype=F64)

    return part(shots), part(shots + 2)


def loss_fn(params: Params, buffers: dict, batch: Sequence[Tensor], key: Tensor) -> Tensor:
    x, y = batch
    return ((net(params, x) - y) ** 2).sum(-1)


def sgd(params, grads, state, count):
    return {k: params[k] - 0.1 * grads[k] for k in params}, state


def momentum(params, grads, state, count):
    state = {k: 0.9 * state[k] + grads[k] if state else grads[k] for k in params}
    return {k: params[k] - 0.1 * state[k] for k in params}, state


def adam(params, grads, state, count):
    if not state:
        state = {k: (torch.zeros_like(p), torch.zeros_like(p)) for k, p in params.items()}
    new, kept = {}, {}
    for k, p in params.items():
        m = 0.9 * state[k][0] + 0.1 * grads[k]
        v = 0.999 * state[k][1] + 0.001 * grads[k] ** 2
        kept[k] = m, v
        m_hat, v_hat = m / (1 - 0.9**count), v / (1 - 0.999**count)
        new[k] = p - 0.1 * m_hat / (v_hat.sqrt() + 1e-3)
    return new, kept


def meta_loss(
    params: Params,
    batch: tuple[Sequence[Tensor], ...],
    rule: Rule,
    steps: int,
    order: int = 2,
    adapted: Sequence[str] = ("body.weight", "body.bias", "head.weight"),
) -> Tensor:
    """Mean query loss after adaptation, with its graph; one task after the other."""
    (xs, ys), (xq, yq) = batch
    losses = []
    for i in range(len(xs)):
        fast, state = dict(params), {}
        for count in range(1, steps + 1):
            loss = loss_fn(fast, {}, (xs[i], ys[i]), torch.empty(0)).mean()
            head = {k: fast[k] for k in adapted}
            grads = torch.autograd.grad(loss, list(head.values()), create_graph=order == 2)
            head, state = rule(head, dict(zip(adapted, grads, strict=True)), state, count)
            fast = fast | head
        losses.append(loss_fn(fast, {}, (xq[i], yq[i]), torch.empty(0)).mean())
    return torch.stack(losses).mean()


def meta_gradient(params: Params, *args, **kwargs) -> tuple[Params, Tensor]:
    leaves = {k: p.clone().requires_grad_() for k, p in params.items()}
    loss = meta_loss(leaves, *args, **kwargs)
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, grads, strict=True)), loss.detach()
