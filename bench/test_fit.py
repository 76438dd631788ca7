"""What does `fit` add to the two lines, at a step of a millisecond?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import funcloop as fl

STEPS = 2000


def step(state: Tensor, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """A step that takes a millisecond, and reports what `train_step` reports."""
    end = time.perf_counter() + 1e-3
    metrics = {name: torch.ones(()) for name in ("loss", "weight", "grad_norm", "accuracy")}
    metrics["learning_rate"] = torch.ones(())
    while time.perf_counter() < end:
        pass
    return state, metrics


@pytest.mark.parametrize("folder", [False, True], ids=["default", "log_dir"])
def test_fit_against_the_bare_loop(folder: bool, compare, tmp_path: Path, monkeypatch):
    """With a progress bar; with a folder, also metrics.jsonl and TensorBoard. What is drawn once,
    at the end, is not part of a step."""
    monkeypatch.setattr("funcloop.loop._run_folder.plot_curves", lambda *_: None)
    monkeypatch.setattr("funcloop.loop._run_folder.report", lambda *_: None)
    data = [torch.ones(1)] * STEPS
    state = torch.ones(())

    def ours() -> None:
        fl.loop.fit(state, step, data, epochs=1, log_dir=tmp_path if folder else None)

    def bare() -> None:
        held = state
        for batch in data:
            held, _ = step(held, batch)

    question = f"fit{' with log_dir' * folder}, {STEPS} steps of 1 ms"
    timings = compare(question, {"fit": ours, "the two lines": bare}, 11)
    print(f"bar 1.03: {timings.ratios['the two lines']:.3f}")
