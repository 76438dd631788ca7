"""What does quantization cost: beside moving the same bytes, and beside the float step?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import funcloop as fl
from bench._workloads import DEVICE, Run, Workload, build, optimizer, running
from funcloop import ops

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


def stepper(model: fl.Stateless | ops.Quantized, work: Workload) -> Run:
    """The jitted and donated step."""
    params, buffers = model.init()
    if isinstance(model, ops.Quantized):
        params, buffers = model.calibrate(params, buffers, work.x)
    tx = optimizer()
    state = fl.TrainState.create(params, buffers, tx, key=fl.random.key(0).to(DEVICE))
    loss_fn = fl.supervised(model, F.cross_entropy, metrics={})
    step = fl.jit(fl.train_step(fl.value_and_grad(loss_fn), tx), donate=0)
    return running(step, state, work)


def test_training_step(compare):
    """4-bit weights and ReLU outputs with learned steps."""
    work = build("cnn")
    model = fl.stateless(work.net)
    qmodel = ops.quantized(model, ops.QuantSpec(4, narrow=True), ops.QuantSpec(4, signed=False))
    rivals = {"quantized": stepper(qmodel, work), "float": stepper(model, work)}
    timings = compare("CNN train step, 4 bits", rivals)
    assert timings.ratios["float"] < 1.4
