"""The progress bar says what is asked for, in units that can be read."""

from __future__ import annotations

import pytest

from funcloop.loop._progress import ProgressBar


def test_what_stands_beside_the_bar(monkeypatch: pytest.MonkeyPatch):
    tqdm = pytest.importorskip("tqdm", reason="the loop extra is not installed")
    shown: dict[str, str] = {}
    monkeypatch.setattr(tqdm.tqdm, "set_postfix", lambda self, words, refresh: shown.update(words))
    bar = ProgressBar(10)
    bar.write(
        {
            "step": 1,
            "epoch": 0,
            "time": 0.1,
            "examples_per_second": 12345.6,
            "train/loss": 0.12345,
            "train/learning_rate": 3e-4,
            "train/grad_norm": 1.0,
            "data_wait": 0.031,
            "memory_bytes": 1.5 * 2**30,
        }
    )
    bar.close()
    assert shown == {
        "loss": "0.123",
        "lr": "0.0003",
        "|grad|": "1",
        "ex/s": "12,346",
        "data": "3%",
        "GiB": "1.50",
    }
