"""What does `fit` add to the two lines, at a step of a millisecond?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import funcloop as fl

STEPS = 500


def step(state: Tensor, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """A step that takes a millisecond, and reports what `train_step` reports."""
    end = time.perf_counter() + 1e-3
    metrics = {name: torch.ones(()) for name in ("loss", "weight", "grad_norm", "accuracy")}
    metrics["learning_rate"] = torch.ones(())
    while time.perf_counter() < end:
        pass
    return state, metrics


def test_fit_against_the_bare_loop(compare, tmp_path: Path, monkeypatch):
    """With a progress bar and metrics.jsonl; the picture at the end is not part of a step."""
    monkeypatch.setattr("funcloop.loop._fit.plot_curves", lambda *_: None)
    data = [torch.ones(1)] * STEPS
    state = torch.ones(())

    def ours() -> None:
        fl.loop.fit(state, step, data, epochs=1, log_dir=tmp_path)

    def bare() -> None:
        held = state
        for batch in data:
            held, _ = step(held, batch)

    timings = compare(f"fit, {STEPS} steps of 1 ms", {"fit": ours, "the two lines": bare}, 15)
    print(f"bar 1.03: {timings.ratios['the two lines']:.3f}")
