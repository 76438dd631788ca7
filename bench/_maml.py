"""The sine workload of MAML's paper, once for every rival; each run gives the meta-gradient.

Run as a module it is one fresh process that compiles once: `python -m bench._maml ours`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import funcloop as fl
from funcloop import meta

TASKS, SHOTS, STEPS, LR = 25, 10, 5, 0.01
Run = Callable[[], Any]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)
    )


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Support and query of 25 sine waves, each (25, 10, 1)."""
    g = torch.Generator().manual_seed(0)
    amplitude = 0.1 + 4.9 * torch.rand(TASKS, 1, 1, generator=g)
    phase = 3.1416 * torch.rand(TASKS, 1, 1, generator=g)
    xs, xq = (10 * torch.rand(TASKS, SHOTS, 1, generator=g) - 5 for _ in "sq")
    return xs, amplitude * torch.sin(xs - phase), xq, amplitude * torch.sin(xq - phase)


def ours() -> Run:
    model = fl.stateless(network())
    params, buffers = model.init()
    grad_fn = meta.maml(fl.supervised(model, F.mse_loss), fl.optim.sgd(LR), STEPS)
    step = fl.jit(grad_fn)
    xs, ys, xq, yq = data()
    key = fl.random.key(0)
    return lambda: tuple(step(params, buffers, ((xs, ys), (xq, yq)), key).grads.values())


def hand_written(compiled: bool) -> Run:
    """What the same computation looks like on torch.func alone."""
    params = {k: p.detach() for k, p in network().named_parameters()}

    def predict(p: dict[str, Tensor], x: Tensor) -> Tensor:
        x = F.relu(F.linear(x, p["0.weight"], p["0.bias"]))
        x = F.relu(F.linear(x, p["2.weight"], p["2.bias"]))
        return F.linear(x, p["4.weight"], p["4.bias"])

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(predict(p, x), y)

    def task(p: dict[str, Tensor], xs: Tensor, ys: Tensor, xq: Tensor, yq: Tensor) -> Tensor:
        for _ in range(STEPS):
            grads = torch.func.grad(loss)(p, xs, ys)
            p = {k: p[k] - LR * grads[k] for k in p}
        return loss(p, xq, yq)

    def over_tasks(p: dict[str, Tensor], *sets: Tensor) -> Tensor:
        return torch.func.vmap(task, (None, 0, 0, 0, 0))(p, *sets).mean()

    gradient = torch.func.grad_and_value(over_tasks)
    run = torch.compile(gradient) if compiled else gradient
    sets = data()
    return lambda: tuple(run(params, *sets)[0].values())


def higher() -> Run:
    import higher  # type: ignore[import-not-found]  # only where it is installed

    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    sets = data()

    def run() -> tuple[Tensor, ...]:
        net.zero_grad()
        for xs, ys, xq, yq in zip(*sets, strict=True):
            with higher.innerloop_ctx(net, optimizer, copy_initial_weights=False) as (fast, inner):
                for _ in range(STEPS):
                    inner.step(F.mse_loss(fast(xs), ys))
                (F.mse_loss(fast(xq), yq) / TASKS).backward()
        return tuple(p.grad.clone() for p in net.parameters())  # type: ignore[union-attr]  # just made

    return run


def torchopt() -> Run:
    import torchopt  # type: ignore[import-not-found]  # only where it is installed

    net = network()
    inner = torchopt.MetaSGD(net, lr=LR)
    leaves, sets = list(net.parameters()), data()

    def run() -> tuple[Tensor, ...]:
        start = torchopt.extract_state_dict(net), torchopt.extract_state_dict(inner)
        losses = []
        for xs, ys, xq, yq in zip(*sets, strict=True):
            for _ in range(STEPS):
                inner.step(F.mse_loss(net(xs), ys))
            losses.append(F.mse_loss(net(xq), yq))
            torchopt.recover_state_dict(net, start[0])
            torchopt.recover_state_dict(inner, start[1])
        return torch.autograd.grad(torch.stack(losses).mean(), leaves)

    return run


def jax() -> Run:
    import jax  # type: ignore[import-not-found]  # only where it is installed
    import jax.numpy as jnp  # type: ignore[import-not-found]
    import numpy as np

    params = [jnp.asarray(p.detach().numpy()) for p in network().parameters()]
    sets = [jnp.asarray(x.numpy()) for x in data()]

    def predict(p: Any, x: Any) -> Any:
        x = jax.nn.relu(x @ p[0].T + p[1])
        x = jax.nn.relu(x @ p[2].T + p[3])
        return x @ p[4].T + p[5]

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((predict(p, x) - y) ** 2).mean()

    def task(p: Any, xs: Any, ys: Any, xq: Any, yq: Any) -> Any:
        for _ in range(STEPS):
            p = [a - LR * g for a, g in zip(p, jax.grad(loss)(p, xs, ys), strict=True)]
        return loss(p, xq, yq)

    def over_tasks(p: Any, *sets: Any) -> Any:
        return jax.vmap(task, (None, 0, 0, 0, 0))(p, *sets).mean()

    gradient = jax.jit(jax.value_and_grad(over_tasks))

    def run() -> Any:
        return jax.block_until_ready(gradient(params, *sets)[1])

    run.to_torch = lambda grads: tuple(torch.from_numpy(np.array(g)) for g in grads)  # type: ignore[attr-defined]  # for the comparison
    return run


RIVALS: dict[str, Callable[[], Run]] = {
    "ours": ours,
    "JAX jit": jax,
    "torch.compile, hand-written": lambda: hand_written(True),
    "eager vmap, hand-written": lambda: hand_written(False),
    "TorchOpt": torchopt,
    "higher": higher,
}

if __name__ == "__main__":
    run = RIVALS[sys.argv[1]]()
    began = time.perf_counter()
    run()
    print(time.perf_counter() - began)
