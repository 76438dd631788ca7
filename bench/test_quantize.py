"""What does quantization cost: beside moving the same bytes, and beside the float step?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import funcloop as fl
from bench._interleave import Rival
from funcloop import ops

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPEC = ops.QuantSpec(8)


def fixed(x: Tensor, grad: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """Value and gradient by x."""
    value, pullback = torch.func.vjp(lambda x: ops.fake_quantize(x, scale, 0, SPEC), x)[:2]
    return value, *pullback(grad)


def learned(x: Tensor, grad: Tensor, step: Tensor) -> tuple[Tensor, ...]:
    """Value and gradients by x and the step."""
    value, pullback = torch.func.vjp(lambda x, s: ops.lsq(x, s, SPEC), x, step)[:2]
    return value, *pullback(grad)


def copy(x: Tensor, grad: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    """Reads and writes as many bytes."""
    return x + 1, grad + 1


@pytest.mark.parametrize("quantize", [fixed, learned])
def test_fake_quantize(quantize: Callable[..., tuple[Tensor, ...]], compare):
    """Both read x and a gradient of 10M elements, and write two such tensors."""
    x, grad = torch.randn(2, 10_000_000, device=DEVICE).unbind()
    scale = torch.tensor(0.02, device=DEVICE)
    ours, theirs = fl.jit(quantize), fl.jit(copy)
    rivals = {
        f"{quantize.__name__} scale": lambda: ours(x, grad, scale),
        "a copy": lambda: theirs(x, grad, scale),
    }
    timings = compare(f"fake_quantize, {quantize.__name__} scale, 10M", rivals)
    assert timings.ratios["a copy"] < 1.2


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
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
    ).to(DEVICE)


def stepper(model: fl.Stateless | ops.Quantized, batch: tuple[Tensor, Tensor]) -> Rival:
    """The jitted and donated step."""
    params, buffers = model.init()
    if isinstance(model, ops.Quantized):
        params, buffers = model.calibrate(params, buffers, batch[0])
    tx = fl.optim.adamw(1e-3)
    state = fl.TrainState.create(params, buffers, tx, key=fl.random.key(0).to(DEVICE))
    loss_fn = fl.supervised(model, F.cross_entropy, metrics={})
    step = fl.jit(fl.train_step(fl.value_and_grad(loss_fn), tx), donate=0)

    def run() -> Tensor:
        nonlocal state
        state, metrics = step(state, batch)
        return metrics["loss"]

    return run


def test_training_step(compare):
    """4-bit weights and ReLU outputs with learned steps."""
    x = torch.randn(64, 3, 32, 32, device=DEVICE)
    batch = x, torch.randint(10, (64,), device=DEVICE)
    model = fl.stateless(cnn())
    qmodel = ops.quantized(model, ops.QuantSpec(4, narrow=True), ops.QuantSpec(4, signed=False))
    rivals: dict[str, Callable[[], Tensor]] = {
        "quantized": stepper(qmodel, batch),
        "float": stepper(model, batch),
    }
    timings = compare("CNN train step, 4 bits", rivals)
    assert timings.ratios["float"] < 1.4
