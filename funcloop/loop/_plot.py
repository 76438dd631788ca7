"""The curves of a run as one picture: loss, accuracy, learning rate, gradient norm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from funcloop._atomic import replaced
from funcloop._errors import ArgumentError, import_extra
from funcloop.loop._jsonl import read_records
from funcloop.loop._record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Panel(NamedTuple):
    """One set of axes: which metric, under which words."""

    metric: str
    title: str
    label: str
    scale: float = 1.0


PANELS = (
    Panel("loss", "Loss", "mean loss per example"),
    Panel("accuracy", "Accuracy", "accuracy (%)", 100.0),
    Panel("learning_rate", "Learning rate", "learning rate (per update)"),
    Panel("grad_norm", "Gradient norm", "L2 norm before clipping"),
)
#: Prefix in a record -> words in the legend, colour, marker.
SERIES = {
    "train": ("training", "#4c78a8", ""),
    "val": ("validation", "#e45756", "o"),
}


def plot_curves(history: str | Path | Iterable[Record], out: str | Path) -> Path:
    """Draw the curves of a run; panels without data are left out.

    Args:
        history: The records of a FitResult, or the path of a `metrics.jsonl`.
        out: The file to write; its ending chooses the format (png, svg, pdf).

    Returns:
        The path of the picture.

    Raises:
        ArgumentError: there is nothing to draw.
        MissingExtraError: matplotlib is not installed.

    >>> import tempfile
    >>> records = [{"step": s, "epoch": 0, "time": 0.1, "train/loss": 1 / s} for s in (1, 2, 3)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_curves(records, Path(folder, "curves.png")).name
    'curves.png'
    """
    figures = import_extra("matplotlib.figure", "loop")  # no pyplot: no global state, no window
    records = read_records(history) if isinstance(history, (str, Path)) else list(history)
    panels = [p for p in PANELS if any(_points(records, s, p.metric)[0] for s in SERIES)]
    if not panels:
        raise ArgumentError(
            "curves need records with a loss, an accuracy, a learning rate or a gradient norm",
            f"{len(records)} records without them",
            "draw the history that `fit` returned",
        )
    rows = -(-len(panels) // 2)
    figure = figures.Figure(figsize=(11, 3.6 * rows), layout="constrained", dpi=120)
    axes = list(figure.subplots(rows, 2, squeeze=False).flat)
    for panel, ax in zip(panels, axes, strict=False):
        _draw(ax, panel, records)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    figure.suptitle(_summary(records))
    with replaced(out) as temporary:
        figure.savefig(temporary)
    return Path(out)


def _draw(ax: Axes, panel: Panel, records: list[Record]) -> None:
    drawn: list[float] = []
    for series, (words, color, marker) in SERIES.items():
        steps, values = _points(records, series, panel.metric)
        values = [value * panel.scale for value in values]
        if steps:
            ax.plot(steps, values, label=words, color=color, marker=marker, markersize=3, lw=1.4)
        drawn += [value for value in values if math.isfinite(value)]
    if panel.metric in ("loss", "grad_norm") and drawn and 0 < 20 * min(drawn) < max(drawn):
        _scale_log(ax)
    ax.set(title=panel.title, xlabel="step (updates)", ylabel=panel.label)
    ax.grid(alpha=0.3)
    ax.legend()


def _scale_log(ax: Axes) -> None:
    ticker = import_extra("matplotlib.ticker", "loop")
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(ticker.NullFormatter())


def _points(records: list[Record], series: str, metric: str) -> tuple[list[float], list[float]]:
    name = f"{series}/{metric}"
    found = [record for record in records if name in record]
    return [record["step"] for record in found], [record[name] for record in found]


def _summary(records: list[Record]) -> str:
    last = records[-1]
    words = [f"{last['step']:,.0f} steps, {last['epoch']:.0f} epochs, {last['time']:.1f} s"]
    for series, (name, _, _) in SERIES.items():
        values = _points(records, series, "accuracy")[1]
        if values:
            words.append(f"{name} accuracy {values[-1]:.2%}")
    return "   ".join(words)
