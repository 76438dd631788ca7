"""The curves of a run as one picture: loss, metrics, learning rate, gradient norm, speed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from funcloop._atomic import replaced
from funcloop._errors import ArgumentError, import_extra
from funcloop.loop._jsonl import read_records
from funcloop.loop._panels import PARTS, Panel, panels_of, points
from funcloop.loop._record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLORS = ("#2868b0", "#d2483e", "#23855a", "#a05fb4", "#b87708", "#2b8fa3")


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
    panels = panels_of(records)
    if not panels:
        raise ArgumentError(
            "curves need records with metrics",
            f"{len(records)} records without any",
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
    for curve, color in zip(panel.curves, itertools.cycle(COLORS)):
        steps, values = zip(*points(records, curve.name), strict=True)
        values = [value * panel.scale for value in values]
        marker = "o" if curve.marked or len(values) == 1 else ""
        ax.plot(steps, values, label=curve.words, color=color, marker=marker, markersize=3, lw=1.4)
        drawn += [value for value in values if math.isfinite(value)]
    if panel.log and drawn and 0 < 20 * min(drawn) < max(drawn):
        _scale_log(ax)
    ax.set(title=panel.title, xlabel="step (updates)", ylabel=panel.label)
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")


def _scale_log(ax: Axes) -> None:
    ticker = import_extra("matplotlib.ticker", "loop")
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(ticker.NullFormatter())


def _summary(records: list[Record]) -> str:
    last = records[-1]
    words = [f"{last['step']:,.0f} steps, {last['epoch']:.0f} epochs, {last['time']:.1f} s"]
    for part, (name, _) in PARTS.items():
        accuracies = points(records, f"{part}/accuracy")
        if accuracies:
            words.append(f"{name} accuracy {accuracies[-1][1]:.2%}")
    return "   ".join(words)
