"""Who is compared with whom on a training step; the first is ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

import torch

from bench._interleave import Rival
from bench._workloads import DEVICE, build, dynamo, imperative, pure

OURS = "pure, jitted, donated"
COMPILED = "torch.compile(model) + fused AdamW"
EAGER = "eager + fused AdamW"
SAME_STEP = "torch.compile, same step"
JAX = "JAX jit + Optax, donated"


def has_jax() -> bool:
    """Whether JAX and Optax are installed, for this device; they are rivals, not dependencies."""
    if not all(importlib.util.find_spec(name) for name in ("jax", "optax")):
        return False
    import jax  # type: ignore[import-not-found]  # found

    return (jax.default_backend() == "cpu") == (DEVICE.type == "cpu")


def imperative_rivals(name: str) -> dict[str, Rival]:
    """The loops that the pure step replaces."""
    work = build(name)
    rivals: dict[str, Rival] = {
        OURS: pure(work),
        COMPILED: imperative(work, compiled=True),
        EAGER: imperative(work, compiled=False),
    }
    return rivals | jax_rival(name)


def overhead_rivals(name: str) -> dict[str, Rival]:
    """Other ways to call the same step."""
    return {OURS: pure(build(name)), SAME_STEP: dynamo(build(name))} | jax_rival(name)


def jax_rival(name: str) -> dict[str, Rival]:
    if not has_jax():
        return {}
    from bench._workloads_jax import jax_step

    return {JAX: jax_step(build(name))}


def assert_same_losses(rivals: Mapping[str, Rival]) -> None:
    """From the same weights, all train alike for five steps."""
    losses = [torch.tensor([float(run()) for _ in range(5)]) for run in rivals.values()]  # type: ignore[arg-type]  # 0-d each
    for theirs in losses[1:]:
        torch.testing.assert_close(theirs, losses[0], rtol=1e-3, atol=1e-3)
