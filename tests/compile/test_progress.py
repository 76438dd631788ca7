"""A long compilation says so on stderr, and a short one does not."""

from __future__ import annotations

import time

import pytest
import torch

from funcloop.compile import _progress, jit


def test_only_a_long_compilation_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def slow(graph: torch.fx.GraphModule, inputs: object) -> object:
        time.sleep(0.3)
        return graph

    jit(step, backend=slow)(torch.ones(1))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(_progress, "PATIENCE", 0.1)
    jit(step, backend=slow)(torch.ones(1))
    assert capsys.readouterr().err == "compiled step in 0 s\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    jit(step, backend=slow)(torch.ones(1))
    assert "compiling step: traced 3 operators, 0 s so far" in capsys.readouterr().err
    monkeypatch.setenv("FUNCLOOP_PROGRESS", "0")
    jit(step, backend=slow)(torch.ones(1))
    assert capsys.readouterr().err == ""
