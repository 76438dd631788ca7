"""curves.png: which panels are drawn, with words and units."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from funcloop._errors import ArgumentError
from funcloop.loop import plot_curves, read_records
from funcloop.loop._jsonl import JsonLines

HEAD = {"step": 10, "epoch": 1, "time": 0.5}
TRAIN = {**HEAD, "train/loss": 2.0, "train/accuracy": 0.5, "train/learning_rate": 0.1}
RECORDS = [
    {**TRAIN, "train/grad_norm": 1.0},
    {**TRAIN, "step": 20, "train/loss": 0.01, "train/grad_norm": math.nan},
    {**HEAD, "step": 20, "val/loss": 1.5, "val/accuracy": 0.75},
]


def words(path: Path) -> str:
    return path.read_text()


@pytest.fixture
def svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    matplotlib = pytest.importorskip("matplotlib", reason="the loop extra is not installed")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text stays text
    return tmp_path / "curves.svg"


def test_every_panel_has_title_units_and_legend(svg: Path):
    assert plot_curves(RECORDS, svg) == svg
    drawn = words(svg)
    for text in (
        *("Loss", "mean loss per example", "Accuracy", "accuracy (%)", "training", "validation"),
        *("Learning rate", "learning rate (per update)", "Gradient norm", "step (updates)"),
        *("L2 norm before clipping", "20 steps, 1 epochs, 0.5 s", "validation accuracy 75.00%"),
    ):
        assert re.search(rf">[^<]*{re.escape(text)}[^<]*<", drawn), text


def test_accuracy_is_in_percent(svg: Path):
    plot_curves(RECORDS, svg)
    assert ">60<" in words(svg)  # a tick between accuracies of 0.5 and 0.75


def test_panels_without_data_are_left_out(svg: Path):
    plot_curves([{**HEAD, "train/loss": 2.0}], svg)
    assert ">Loss<" in words(svg)
    assert ">Accuracy<" not in words(svg)


def test_from_a_file(tmp_path: Path):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    for record in RECORDS:
        sink.write(record)
    sink.close()
    picture = plot_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(read_records(tmp_path / "metrics.jsonl")) == 3


def test_nothing_to_draw_is_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match="0 records without any"):
        plot_curves([], tmp_path / "curves.png")


def test_pyplot_is_not_touched(tmp_path: Path):
    """A library that imports pyplot picks the user's backend, and may open a display."""
    program = (
        "import sys; from funcloop.loop import plot_curves; "
        "record = {'step': 1, 'epoch': 0, 'time': 0.0, 'train/loss': 1.0}; "
        "plot_curves([record], sys.argv[1]); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "c.png")], check=True)
