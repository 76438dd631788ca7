"""The curve of a learning-rate sweep as a picture."""

from __future__ import annotations

from pathlib import Path

from funcloop._atomic import replaced
from funcloop._errors import import_extra
from funcloop.loop._lr_finder import RateSweep


def plot_sweep(sweep: RateSweep, out: str | Path) -> Path:
    """Draw loss against learning rate, with the suggestion marked.

    Args:
        sweep: What `lr_finder` returned.
        out: The file to write; its ending chooses the format (png, svg, pdf).

    Returns:
        The path of the picture.

    Raises:
        MissingExtraError: matplotlib is not installed.

    >>> import tempfile
    >>> from funcloop.loop import RateSweep
    >>> sweep = RateSweep([1e-3, 1e-2, 1e-1], [2.0, 1.0, 1.5], [2.0, 1.5, 1.5], 1e-2, None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_sweep(sweep, Path(folder, "rates.png")).name
    'rates.png'
    """
    figures = import_extra("matplotlib.figure", "loop")
    figure = figures.Figure(figsize=(8, 4.5), layout="constrained", dpi=120)
    ax = figure.subplots()
    ax.plot(sweep.rates, sweep.losses, color="#a8bdd6", lw=1, label="loss of each step")
    ax.plot(sweep.rates, sweep.smoothed, color="#2f5d96", lw=2, label="smoothed")
    if sweep.suggestion is not None:
        at = sweep.smoothed[sweep.rates.index(sweep.suggestion)]
        words = f"steepest descent: {sweep.suggestion:.2g}"
        ax.plot([sweep.suggestion], [at], "o", color="#d1495b", markersize=8, label=words)
    title = "Learning-rate sweep"
    if sweep.diverged_at is not None:
        ax.axvline(sweep.diverged_at, color="#888888", ls="--", lw=1, label="diverged")
        title += f", diverged at {sweep.diverged_at:.2g}"
    ax.set_ylim(*_limits(sweep))
    ax.set(xscale="log", xlabel="learning rate", ylabel="mean loss per example", title=title)
    ax.grid(alpha=0.3)
    ax.legend()
    with replaced(out) as temporary:
        figure.savefig(temporary)
    return Path(out)


def _limits(sweep: RateSweep) -> tuple[float, float]:
    """So high that the descent is seen, whatever the last losses before the end were."""
    lowest = sweep.smoothed.index(min(sweep.smoothed))
    low, high = min(sweep.losses), max(sweep.losses[: lowest + 1])
    margin = (high - low) / 4 or 1.0
    return low - margin, high + margin
