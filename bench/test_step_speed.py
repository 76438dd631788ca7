"""Is the pure step as fast as the imperative loops that it replaces?"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import funcloop as fl
from bench._interleave import Rival

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mlp() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    return net, torch.randn(128, 64)


def cnn() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 64, 10),
    )
    return net, torch.randn(64, 3, 32, 32)


def pure(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """The jitted and donated step; it also reports the gradient norm, which the rivals do not."""
    model = fl.stateless(net)
    loss_fn = fl.supervised(model, F.cross_entropy, metrics={})
    tx = fl.optim.adamw(1e-3)
    state = fl.TrainState.create(*model.init(), tx, key=fl.random.key(0))
    step = fl.jit(fl.train_step(fl.value_and_grad(loss_fn), tx), donate=0)

    def run() -> Tensor:
        nonlocal state
        state, metrics = step(state, (x, y))
        return metrics["loss"]

    return run


def imperative(net: nn.Module, x: Tensor, y: Tensor, compiled: bool) -> Callable[[], Tensor]:
    """The usual loop body with the fused optimizer."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    model = torch.compile(net) if compiled else net

    def run() -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return run


@pytest.mark.parametrize("build", [mlp, cnn])
def test_step_speed(build: Callable[[], tuple[nn.Module, Tensor]], compare):
    torch.manual_seed(0)
    net, x = build()
    net, x = net.to(DEVICE), x.to(DEVICE)
    y = torch.randint(10, (len(x),), device=DEVICE)
    rivals: dict[str, Rival] = {
        "pure, jitted, donated": pure(net, x, y),
        "torch.compile(model) + fused AdamW": imperative(net, x, y, compiled=True),
        "eager + fused AdamW": imperative(net, x, y, compiled=False),
    }
    losses = torch.stack([torch.stack([rival() for _ in range(5)]) for rival in rivals.values()])
    torch.testing.assert_close(losses, losses[2].expand(3, 5), rtol=1e-3, atol=1e-3)
    compare(f"{build.__name__} train step", rivals)
