"""`report.html`: a run on one page, from the files in its folder."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from funcloop._atomic import replaced
from funcloop._errors import ArgumentError
from funcloop.loop._chart import Series, bar_chart, line_chart, number
from funcloop.loop._jsonl import read_records
from funcloop.loop._panels import Panel, panels_of, points
from funcloop.loop._record import Record
from funcloop.loop._report_page import chart_card, page, section, table_card, tiles

#: Metrics that stand on top of the page, in this order.
HEADLINES = {
    "val/accuracy": "validation accuracy",
    "val/loss": "validation loss",
    "train/loss": "training loss",
}


def report(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a run: one file that needs no network.

    Curves of every metric, learning rate, gradient norm, speed, histograms of weights and gradients
    by layer, configuration, environment and key. `fit` with `log_dir` calls it at the end.

    Args:
        folder: The `log_dir` of `fit`, with `metrics.jsonl`, `run.json`, `histograms.json`; what is
            missing of the last two is left out.

    Returns:
        The path of the page.

    Raises:
        ArgumentError: there are no records.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "metrics.jsonl").write_text(
    ...     '{"step": 1, "epoch": 0, "time": 0.5, "train/loss": 2.0}' + chr(10))
    >>> report(folder).name
    'report.html'
    """
    folder = Path(folder)
    records = read_records(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    if not records:
        raise ArgumentError(
            "a report needs records", f"none in {folder}", "give the log_dir of a run"
        )
    run, found = _read(folder / "run.json"), _read(folder / "histograms.json")
    charts = "".join(_chart(panel, records) for panel in panels_of(records))
    sections = [
        tiles(_highlights(records)),
        section("Curves", f'<div class="charts">{charts}</div>' if charts else ""),
        section(
            "Layers",
            _layers(found),
            "At the end of the run. Bins reach four standard deviations from the mean, the "
            "outermost hold all beyond; the dashed line is zero."
            if found
            else "",
        ),
        section("Run", _run_tables(run)),
    ]
    text = page(_title(folder), _lead(records, run), sections)
    with replaced(folder / "report.html") as temporary:
        temporary.write_text(text, encoding="utf-8")
    return folder / "report.html"


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _title(folder: Path) -> str:
    return f"Training run {folder.resolve().name}"


def _lead(records: list[Record], run: Mapping[str, Any]) -> str:
    last = records[-1]
    words = [
        f"{last['step']:,.0f} updates",
        f"{last['epoch']:,.0f} epochs",
        _duration(last["time"]),
    ]
    if run.get("parameters", {}).get("numbers"):
        words.append("{numbers:,} parameters in {tensors} tensors".format(**run["parameters"]))
    if "started" in run:
        began = datetime.datetime.fromisoformat(run["started"])
        words.insert(0, f"started {began:%d %B %Y, %H:%M} (UTC{began:%z})")
    return " · ".join(words)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def _highlights(records: list[Record]) -> list[tuple[str, str]]:
    """Words and numbers: the last accuracies and losses, the best evaluation, and the speed."""
    shown: list[tuple[str, str]] = []
    for name, words in HEADLINES.items():
        values = points(records, name)
        if values:
            best = f"; best {_best(name, values)}" if name.startswith("val/") else ""
            shown.append((f"{words}{best}", _as_words(name, values[-1][1])))
    speed, waited = _middle(records, "examples_per_second"), _middle(records, "data_wait")
    if speed is not None:
        shown.append(("examples per second, median", f"{speed:,.0f}"))
    if waited is not None:
        shown.append(("of the time spent waiting for data, median", f"{waited:.1%}"))
    memory = points(records, "memory_bytes")
    if memory:
        shown.append(("of memory at the peak", f"{memory[-1][1] / 2**30:.2f} GiB"))
    return shown


def _best(name: str, values: list[tuple[float, float]]) -> str:
    finite = [point for point in values if math.isfinite(point[1])]
    if not finite:
        return "none"
    choose = max if name.endswith("accuracy") else min
    step, value = choose(finite, key=lambda point: point[1])
    return f"{_as_words(name, value)} at step {step:,.0f}"


def _as_words(name: str, value: float) -> str:
    return f"{value:.2%}" if name.endswith("accuracy") else number(value)


def _middle(records: list[Record], name: str) -> float | None:
    values = [value for _, value in points(records, name)]
    return median(values) if values else None


def _chart(panel: Panel, records: list[Record]) -> str:
    series = [
        Series(words, [(x, y * panel.scale) for x, y in points(records, name)], marked)
        for name, words, marked in panel.curves
    ]
    svg = line_chart(series, "step (updates)", panel.label, panel.log)
    return chart_card(panel.title, [curve.name for curve in series], svg) if svg else ""


def _layers(found: Mapping[str, Mapping[str, Any]]) -> str:
    """One row for each leaf, a column of bars for each tree."""
    if not found:
        return ""
    paths = dict.fromkeys(path for leaves in found.values() for path in leaves)
    head = "".join(f"<th>{escape(word)}</th>" for word in ("layer", *found))
    rows = "".join(_layer(path, found) for path in paths)
    return f'<div class="card wide"><table><thead><tr>{head}</tr></thead>{rows}</table></div>'


def _layer(path: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    shape = next(leaves[path]["shape"] for leaves in found.values() if path in leaves)
    size = " by ".join(map(str, shape)) or "one number"
    cells = [f'<td><code>{escape(path)}</code><div class="note">{size}</div></td>']
    for kind, leaves in found.items():
        cells.append(f'<td class="bars">{_bars(leaves[path], kind) if path in leaves else ""}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _bars(entry: Mapping[str, Any], kind: str) -> str:
    parts, words = [], []
    if "counts" in entry:
        parts.append(bar_chart(entry["counts"], entry["low"], entry["high"], kind))
        largest = max(abs(entry["min"]), abs(entry["max"]))
        words = [f"mean {entry['mean']:.2g}", f"std {entry['std']:.2g}", f"largest {largest:.2g}"]
        if entry["zeros"] >= 0.005:
            words.append(f"{entry['zeros']:.0%} exactly zero")
        parts.append(f'<div class="note">{", ".join(words)}</div>')
    if entry["nonfinite"]:
        parts.append(f'<div class="bad">{entry["nonfinite"]:,} NaN or infinite</div>')
    return "".join(parts)


def _run_tables(run: Mapping[str, Any]) -> str:
    if not run:
        return ""
    config = [(name, str(value)) for name, value in _flat(run.get("config", {})).items()]
    first = [("first step", f"{run['first_step'] + 1:,}"), ("key of the run", str(run["key"]))]
    configuration = table_card("Configuration", [*config, *first])
    environment = table_card("Environment", list(run.get("environment", {}).items()))
    return f'<div class="pair">{configuration}{environment}</div>'


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, Mapping)
        flat.update(_flat(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value})
    return flat
