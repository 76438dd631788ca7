"""What does the clipped gradient cost, next to the plain one, and next to Opacus and JAX?

Each workload is one interleaved run; the ratio is (clipped / rival), with a bar on the ratio to the
plain compiled mean gradient. Rivals that are not installed are left out.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench._process import RETURN_FREED
from funcloop import persample, random
from funcloop.compile import jit
from funcloop.estimators import supervised, value_and_grad
from funcloop.stateless import stateless

MAX_NORM = 1.0


class MnistCNN(nn.Module):
    """The network of Opacus's MNIST example."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1, self.fc2 = nn.Linear(512, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2, 1)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 1)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Encoder(nn.Module):
    """A transformer encoder of four layers, d=128, and a head on the mean of its positions."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:]):  # noqa: B905, RUF007  # python 3.10 has pairwise, ruff minds
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Workload(NamedTuple):
    """A network and the shape of its batch; `bar` is on the ratio to the plain gradient."""

    net: Callable[[], nn.Module]
    shape: tuple[int, ...]
    bar: float


WORKLOADS = {
    "MLP 784-512-512-10, B=256": Workload(lambda: mlp(784, 512, 512, 10), (256, 784), 1.15),
    "Opacus's MNIST CNN, B=256": Workload(MnistCNN, (256, 1, 28, 28), 1.5),
    "encoder, 4 layers, d=128, T=64, B=32": Workload(Encoder, (32, 64, 128), 1.25),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_persample_clipped_gradient(name, compare):
    workload = WORKLOADS[name]
    torch.manual_seed(0)
    net = workload.net()
    x, y = torch.randn(workload.shape), torch.randint(10, workload.shape[:1])
    model, key = stateless(net), random.key(0)
    params, buffers = model.init()
    loss_fn = supervised(model, F.cross_entropy)

    def call(grad_fn: Callable) -> Callable[[], object]:
        compiled = jit(grad_fn)
        return lambda: compiled(params, buffers, (x, y), key)

    rivals = {
        "clipped": call(persample.clipped(loss_fn, MAX_NORM)),
        f"plain gradient (bar {workload.bar})": call(value_and_grad(loss_fn)),
        "vmap engine": call(persample.clipped(loss_fn, MAX_NORM, engine="vmap")),
        **opacus_rivals(net, x, y),
        **jax_rivals(net, x, y),
    }
    check_same(rivals)
    compare(name, rivals, rounds=20, budget=12.0)


def check_same(rivals: dict[str, Callable]) -> None:
    """Both engines compute the same thing."""
    got, want = (rivals[name]().grads for name in ("clipped", "vmap engine"))
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-3, atol=1e-5)


def opacus_rivals(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable]:
    """Opacus's hooks (every per-sample gradient) and its ghost clipping, where it is installed."""
    if importlib.util.find_spec("opacus") is None:
        return {}
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from opacus.validators import ModuleValidator

    net = ModuleValidator.fix(copy.deepcopy(net)).train()
    hooked = GradSampleModule(copy.deepcopy(net))
    ghost = GradSampleModuleFastGradientClipping(
        copy.deepcopy(net), max_grad_norm=MAX_NORM, use_ghost_clipping=True
    )

    def hooks() -> None:
        hooked.zero_grad(set_to_none=True)
        F.cross_entropy(hooked(x), y, reduction="sum").backward()
        rows = [p.grad_sample for p in hooked.parameters()]
        norms = torch.stack([r.flatten(1).norm(dim=1) for r in rows]).norm(dim=0)
        factors = (MAX_NORM / (norms + 1e-6)).clamp(max=1.0)
        for p, r in zip(hooked.parameters(), rows, strict=True):
            p.grad = torch.einsum("b,b...->...", factors, r) / len(x)
            p.grad_sample = None

    class Optimizer:  # all that the loss asks of one
        loss_reduction = "mean"
        zero_grad = staticmethod(lambda: ghost.zero_grad(set_to_none=True))

    criterion = DPLossFastGradientClipping(ghost, Optimizer(), nn.CrossEntropyLoss())  # type: ignore[arg-type]

    def ghost_clipping() -> None:
        ghost.zero_grad(set_to_none=True)
        criterion(ghost(x), y).backward()

    return {"Opacus hooks": hooks, "Opacus ghost": ghost_clipping}


def jax_rivals(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable]:
    """`jit(vmap(grad))` with clipping, for the networks that are written in JAX here."""
    if importlib.util.find_spec("jax") is None or isinstance(net, Encoder):
        return {}
    import jax
    import jax.numpy as jnp
    from jax import lax

    def pool(h):
        window = (1, 1, 2, 2)
        return lax.reduce_window(h, -jnp.inf, lax.max, window, (1, 1, 1, 1), "VALID")

    def cnn(p, h):
        for name, stride, pad in (("conv1", 2, 3), ("conv2", 2, 0)):
            h = lax.conv(jnp.pad(h, ((0, 0), (0, 0), (pad, pad), (pad, pad))),
                         p[f"{name}.weight"], (stride, stride), "VALID")  # fmt: skip
            h = pool(jax.nn.relu(h + p[f"{name}.bias"][:, None, None]))
        h = jax.nn.relu(h.reshape(h.shape[0], -1) @ p["fc1.weight"].T + p["fc1.bias"])
        return h @ p["fc2.weight"].T + p["fc2.bias"]

    def perceptron(p, h):
        for i in (0, 2, 4):
            h = h @ p[f"{i}.weight"].T + p[f"{i}.bias"]
            h = jax.nn.relu(h) if i < 4 else h
        return h

    forward = cnn if isinstance(net, MnistCNN) else perceptron

    def loss(p, x, y):
        return -jax.nn.log_softmax(forward(p, x[None]))[0, y]

    @jax.jit
    def clipped(p, x, y):
        rows = jax.vmap(jax.grad(loss), (None, 0, 0))(p, x, y)
        squares = sum(jnp.square(r).reshape(len(x), -1).sum(1) for r in rows.values())
        factors = jnp.minimum(1, MAX_NORM * lax.rsqrt(squares)) / len(x)
        return {k: jnp.tensordot(factors, r, 1) for k, r in rows.items()}

    p = {k: jnp.asarray(v.detach().numpy()) for k, v in net.named_parameters()}
    args = p, jnp.asarray(x.numpy()), jnp.asarray(y.numpy())
    return {"JAX vmap": lambda: jax.block_until_ready(clipped(*args))}


PEAK = """
import resource, sys, torch, torch.nn.functional as F
from bench.test_persample import mlp
from funcloop import persample, random
from funcloop.compile import jit
from funcloop.estimators import supervised, value_and_grad
from funcloop.stateless import stateless
model = stateless(mlp(784, 2600, 2600, 2600, 10))
params, buffers = model.init()
loss_fn = supervised(model, F.cross_entropy)
make = dict(plain=value_and_grad, clipped=lambda f: persample.clipped(f, 1.0),
            vmap=lambda f: persample.clipped(f, 1.0, engine="vmap"))[sys.argv[1]]
step = jit(make(loss_fn))
batch = torch.randn(32, 784), torch.randint(10, (32,))
step(params, buffers, batch, random.key(0))
def now():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = now()
open("/proc/self/clear_refs", "w").write("5")
step(params, buffers, batch, random.key(0))
peak = next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if "VmHWM" in l)
print(peak - before, sum(p.numel() for p in params.values()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
def test_persample_peak_memory(benchmark):
    """15.6M parameters, B=32: what a call needs beyond what is there before it."""

    def peak(which: str) -> int:
        used, _ = subprocess.check_output(
            [sys.executable, "-W", "ignore", "-c", PEAK, which],
            env=os.environ | RETURN_FREED,
            text=True,
        ).split()
        return int(used)

    used = {which: peak(which) for which in ("plain", "clipped", "vmap")}
    benchmark.extra_info.update(used, ratio=used["clipped"] / used["plain"], bar=1.3)
    benchmark.pedantic(lambda: None)
    megabytes = {name: value >> 20 for name, value in used.items()}
    print(f"\npeak MB: {megabytes}, ratio {used['clipped'] / used['plain']:.2f} (bar 1.3)")
