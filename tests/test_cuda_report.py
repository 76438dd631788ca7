"""The report for CUDA devices, as far as it runs without one."""

from __future__ import annotations

import pytest
import torch

from bench import cuda_report
from bench._numerics import checks

QUICK = [name for name, _ in checks(torch.device("cpu")) if "jitted" not in name]


@pytest.mark.parametrize("name", QUICK)
def test_numerics(name: str, device: torch.device):
    dict(checks(device))[name]()


def test_a_failing_check_is_counted(monkeypatch, capsys):
    def wrong() -> None:
        raise AssertionError("of another sign")

    monkeypatch.setattr(cuda_report, "checks", lambda device: [("a", wrong), ("b", lambda: None)])
    assert cuda_report.numerics(torch.device("cpu")) == 1
    assert "FAIL  a: of another sign" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would make the report")
def test_nothing_to_report_without_a_device(capsys):
    assert cuda_report.main() == 0
    assert "no CUDA device" in capsys.readouterr().out
