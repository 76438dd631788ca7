"""Is the pure step as fast as the imperative loops that it replaces, and as JAX's?"""

from __future__ import annotations

import pytest
import torch

from bench._interleave import Rival
from bench._workloads import build, dynamo, imperative, pure
from bench.conftest import Compare, has_jax

OURS = "pure, jitted, donated"


def with_jax(rivals: dict[str, Rival], name: str) -> dict[str, Rival]:
    if not has_jax():
        return rivals
    from bench._workloads_jax import jax_step

    return rivals | {"JAX jit + Optax, donated": jax_step(build(name))}


def assert_same_losses(rivals: dict[str, Rival]) -> None:
    losses = [[float(rival()) for _ in range(5)] for rival in rivals.values()]  # type: ignore[arg-type]  # 0-d each
    for theirs in losses[1:]:
        assert losses[0] == pytest.approx(theirs, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "wide"])
def test_step_speed(name: str, compare: Compare):
    work = build(name)
    rivals: dict[str, Rival] = {
        OURS: pure(work),
        "torch.compile(model) + fused AdamW": imperative(work, compiled=True),
        "eager + fused AdamW": imperative(work, compiled=False),
    }
    rivals = with_jax(rivals, name)
    assert_same_losses(rivals)
    compare(f"{name} train step", rivals, budget=15.0)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
def test_step_overhead(compare: Compare):
    """Two layers of eight units: what is timed is the call."""
    torch.compiler.reset()
    rivals: dict[str, Rival] = {OURS: pure(build("tiny"))}
    rivals["torch.compile, same step"] = dynamo(build("tiny"))
    rivals = with_jax(rivals, "tiny")
    assert_same_losses(rivals)
    compare("tiny train step: overhead", rivals, budget=15.0)
