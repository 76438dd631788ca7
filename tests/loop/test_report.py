"""report.html: one whole file with everything in it, whatever the run was."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from funcloop import optim, random
from funcloop._errors import ArgumentError
from funcloop.loop import Position, report
from funcloop.loop._chart import Series, bar_chart, line_chart, number
from funcloop.loop._environment import environment, plain
from funcloop.loop._panels import panels_of
from funcloop.loop._run_folder import RunFolder
from funcloop.loop._saver import Start
from funcloop.step import TrainState

HEAD = {"epoch": 1, "time": 75.0}
RECORDS = [
    {
        "step": s,
        **HEAD,
        "train/loss": 2.0 / s,
        "train/learning_rate": 0.1,
        "train/grad_norm": math.nan if s == 2 else 1.0,
        "examples_per_second": 1234.0,
        "data_wait": 0.25,
        "memory_bytes": 3.0 * 2**30,
    }
    for s in (1, 2, 3)
] + [
    {"step": s, **HEAD, "val/loss": 1.0 / s, "val/accuracy": 0.9 - s / 100, "val/f1/macro": 0.5}
    for s in (2, 3)
]


def state() -> TrainState:
    params = {"layer.weight": torch.randn(4, 3), "b<i>": torch.tensor([1.0, math.nan])}
    return TrainState.create(params, {}, optim.sgd(0.1), key=random.key(7))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "my run"
    config = {"optimizer": {"name": "sgd", "lr": 0.1}, "note": "<script>alert(1)</script>"}
    folder = RunFolder(path, Start(state(), Position(), 0), config)
    for record in RECORDS:
        folder.write(record)
    params = state().params
    folder.keep_histograms({"weights": params, "gradients": params})
    folder.close()
    assert (path / "curves.png").read_bytes().startswith(b"\x89PNG")
    return path


@pytest.fixture
def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


class Words(HTMLParser):
    """The visible words, and whether every element that was opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "line", "rect", "circle", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)


def test_everything_is_on_the_page(page: str):
    words = "\n".join(Words(page).words)
    for expected in (
        *("Training run my run", "3 updates", "1 min 15 s", "14 parameters in 2 tensors"),
        *("87.00%", "validation accuracy; best 88.00% at step 2", "1,234", "25.0%", "3.00 GiB"),
        *("Loss", "mean loss per example", "Accuracy", "accuracy (%)", "Learning rate"),
        *("learning rate (per update)", "L2 norm before clipping", "examples per second"),
        *("share of the time (%)", "step (updates)", "training", "validation", "validation macro"),
        *("layer.weight", "4 by 3", "weights", "gradients", "1 NaN or infinite"),
        *("optimizer.lr", "0.1", "key of the run", "[0, 7]", "torch", torch.__version__),
    ):
        assert expected in words, expected


def test_the_page_needs_nothing_else_and_runs_nothing(page: str):
    assert not re.search(r"https?://|<script|<link|@import|url\(|src=", page)
    assert "&lt;script&gt;" in page
    assert "prefers-color-scheme: dark" in page


def test_svgs_are_well_formed(page: str):
    svgs = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(svgs) == len(panels_of(RECORDS)) + 4
    for svg in svgs:
        ElementTree.fromstring(svg)


def test_a_folder_without_records_is_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match="none in"):
        report(tmp_path)


def test_records_alone_are_enough(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(RECORDS[0]) + "\n")
    words = Words(report(tmp_path).read_text()).words
    assert "Curves" in words
    assert "Layers" not in words
    assert "Run" not in words


def test_a_run_that_never_was_finite_has_a_page(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "epoch": 0, "time": 1.0, "val/loss": "NaN", "train/loss": "Infinity"}\n'
    )
    assert "best none" in "".join(Words(report(tmp_path).read_text()).words)


def test_panels_hold_what_there_is():
    titles = [panel.title for panel in panels_of(RECORDS)]
    assert titles == [
        *("Loss", "Accuracy", "f1", "Learning rate", "Gradient norm", "Speed", "Waiting for data")
    ]
    assert panels_of([{"step": 1, "train/weight": 3.0, "other": 1.0}]) == []


FINITE = st.floats(-1e30, 1e30)
POINTS = st.lists(st.one_of(FINITE, st.just(math.nan), st.just(math.inf)), max_size=30)


@given(st.lists(POINTS, min_size=1, max_size=3), st.booleans())
def test_a_chart_of_any_numbers_is_well_formed_and_inside_its_frame(curves: list, log: bool):
    series = [Series(f"<{i}>", list(enumerate(ys)), True) for i, ys in enumerate(curves)]
    svg = line_chart(series, "x & y", "<y>", log)
    if not any(math.isfinite(y) for ys in curves for y in ys):
        assert svg == ""
        return
    ElementTree.fromstring(svg)
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", svg.split('class="series')[1]):
        assert 0 <= float(x) <= 560
        assert 0 <= float(y) <= 280


def test_a_gap_is_no_line():
    svg = line_chart([Series("a", [(0, 1.0), (1, math.nan), (2, 2.0), (3, 1.0)])], "", "", False)
    (path,) = re.findall(r'<g class="series c0"><path d="([^"]*)"', svg)
    assert path.count("M") == 2
    assert path.count("L") == 1


def test_a_logarithm_only_where_it_is_asked_for_and_possible():
    wide = [Series("a", [(0, 1.0), (1, 1000.0)])]
    assert ">100<" in line_chart(wide, "", "", True)
    assert ">100<" not in line_chart(wide, "", "", False)
    assert line_chart([Series("a", [(0, -1.0), (1, 1000.0)])], "", "", True)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=61), FINITE)
def test_bars_are_well_formed(counts: list[int], low: float):
    ElementTree.fromstring(bar_chart(counts, low, low + 1 + abs(low), "weights"))


def test_numbers_are_short():
    assert [number(v) for v in (0.012345, 12345.6, 1e-9, 0.0, 3e8)] == [
        *("0.01235", "12,346", "1e-09", "0", "3e+08")
    ]


def test_the_environment_is_words():
    found = environment()
    assert found["torch"] == torch.__version__
    assert all(isinstance(value, str) and value for value in found.values())


def test_a_configuration_becomes_json():
    values = {"path": Path("a"), "rate": 0.1, "nan": math.nan, "shape": (1, 2), "none": None}
    assert plain(values) == {"path": "a", "rate": 0.1, "nan": "nan", "shape": [1, 2], "none": None}
    json.dumps(plain(values), allow_nan=False)


def test_tensorboard_reads_the_records_back(folder: Path):
    name = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(name, reason="without tensorboard no events are written")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    got = [(e.step, e.value) for e in events.Scalars("train/loss")]
    assert got == [(s, pytest.approx(2.0 / s)) for s in (1, 2, 3)]
    assert "data_wait" in events.Tags()["scalars"]
