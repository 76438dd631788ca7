"""Is the jitted meta-gradient as fast as JAX's, quick to compile, and flat in memory?"""

from __future__ import annotations

import importlib.util
import sys
import tempfile

import pytest
import torch

import funcloop as fl
from bench._interleave import interleave
from bench._maml import RIVALS, Run, data, network
from bench._process import RETURN_FREED, memory, python
from funcloop import meta

INSTALLED_AS = {"JAX jit": "jax", "TorchOpt": "torchopt", "higher": "higher"}
SLOW = ("TorchOpt", "higher")


def installed() -> list[str]:
    return [
        name
        for name in RIVALS
        if name not in INSTALLED_AS or importlib.util.find_spec(INSTALLED_AS[name])
    ]


def as_torch(run: Run) -> tuple[torch.Tensor, ...]:
    grads = run()
    return getattr(run, "to_torch", tuple)(grads)


def test_sine_maml(compare, benchmark):
    runs = {name: RIVALS[name]() for name in installed()}
    want = as_torch(runs["eager vmap, hand-written"])
    for run in runs.values():
        torch.testing.assert_close(as_torch(run), want, rtol=1e-3, atol=1e-4)
    quick = {name: run for name, run in runs.items() if name not in SLOW}
    compare("sine MAML, 25 tasks, 5 steps, 2nd order", quick)
    slow = {name: run for name, run in runs.items() if name in ("ours", *SLOW)}
    if len(slow) > 1:
        ratios = interleave(slow, rounds=5).ratios
        benchmark.extra_info["times faster"] = {name: 1 / r for name, r in ratios.items()}
        print({name: f"{1 / ratio:.0f} times faster" for name, ratio in ratios.items()})


def test_cold_compile(benchmark):
    """Seconds of the first call in a fresh process without any cache."""
    names = [n for n in ("ours", "torch.compile, hand-written", "JAX jit") if n in installed()]
    seconds = {}
    for name in names:
        with tempfile.TemporaryDirectory() as cache:
            seconds[name] = python("bench._maml", name, TORCHINDUCTOR_CACHE_DIR=cache).printed
    benchmark.extra_info["cold compile, s"] = seconds
    ours = seconds["ours"]
    print(f"\ncold compile: ours {ours:.1f} s")
    for name in names[1:]:
        print(f"  ours / {name} ({seconds[name]:.1f} s): {ours / seconds[name]:.2f}")
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_remat_memory(backend: str, benchmark):
    """Peak memory of the gradient through 5 and 50 inner steps."""

    def peak(steps: int, remat: str) -> float:
        return python("bench._peak", str(steps), remat, backend, **RETURN_FREED).printed

    peaks = {f"{n} {r}": peak(n, r) / 2**20 for n in (5, 50) for r in ("plain", "remat")}
    benchmark.extra_info["peak memory, MiB"] = peaks
    print(f"\npeak MiB, {backend}: {peaks}")
    assert peaks["50 remat"] <= 2 * peaks["5 remat"]
    assert peaks["50 remat"] <= 2 * peaks["5 plain"]
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self")
def test_growth_over_meta_steps(benchmark):
    """Resident memory after 200 and after 1,200 jitted meta-steps."""
    model = fl.stateless(network())
    tx = fl.optim.adam(1e-3)
    grad_fn = meta.maml(fl.supervised(model, torch.nn.functional.mse_loss), fl.optim.sgd(0.01), 5)
    state = fl.TrainState.create(*model.init(), tx, key=fl.random.key(0))
    step = fl.jit(fl.train_step(grad_fn, tx), donate=0)
    xs, ys, xq, yq = data()
    sizes = []
    for i in range(1, 1201):
        state, _ = step(state, ((xs, ys), (xq, yq)))
        if i in (200, 1200):
            sizes.append(memory("VmRSS"))
    growth = (sizes[1] - sizes[0]) / 2**20
    benchmark.extra_info["growth over 1,000 meta-steps, MiB"] = growth
    print(f"\ngrowth over 1,000 meta-steps: {growth:.2f} MiB; traces: {step.traces}")
    assert growth < 1
    assert step.traces == 1
    benchmark.pedantic(lambda: None, rounds=1)
