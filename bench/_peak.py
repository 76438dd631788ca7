"""Peak memory of one gradient through an inner loop: `python -m bench._peak STEPS REMAT BACKEND`.

Prints the bytes by which one call raises the resident size of a fresh process at most (Linux).
"""

from __future__ import annotations

import gc
import sys

import torch
from torch import Tensor

import funcloop as fl
from bench._process import forget_peak, memory
from funcloop import meta

ROWS, WIDTH = 20_000, 32


def step(weights: Tensor, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, dict]:
    """Gradient descent on a layer whose activations are far larger than its weights."""
    x, y, rate = batch
    loss = lambda w: ((torch.tanh(x @ w) - y) ** 2).mean()  # noqa: E731  # one formula
    return weights - rate * torch.func.grad(loss)(weights), {}


def main(steps: int, remat: bool, backend: str) -> None:
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(ROWS, WIDTH, generator=g), torch.randn(ROWS, WIDTH, generator=g)
    run = meta.unroll(step, steps, remat=remat)

    def loss(weights: Tensor, rate: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return run(weights, (x, y, rate))[0].square().sum()

    gradient = torch.func.grad(loss, argnums=(0, 1))
    gradient = gradient if backend == "eager" else fl.jit(gradient, backend=backend)
    args = torch.randn(WIDTH, WIDTH, generator=g) / 8, torch.tensor(0.1), x, y
    gradient(*args)  # compiles
    gc.collect()
    forget_peak()
    before = memory("VmRSS")
    gradient(*args)
    print(memory("VmHWM") - before)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "remat", sys.argv[3])
