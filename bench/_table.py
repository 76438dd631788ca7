"""The table of figures and ratios that every report prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Row = tuple[str, ...]
HEAD = ("question", "ours", "rival", "its figure", "ours / rival")


def rows(
    question: str, values: Mapping[str, float], ratios: Mapping[str, float], unit: str = "s"
) -> list[Row]:
    """One row for each rival; the first of the values is ours."""
    ours = written(next(iter(values.values())), unit)
    return [
        (question, ours, name, written(values[name], unit), f"{ratio:.2f}")
        for name, ratio in ratios.items()
    ]


def lines(rows: Sequence[Row]) -> list[str]:
    """The table as text, a head first."""
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (HEAD, *rows)
    ]


def plain_ratios(values: Mapping[str, float]) -> dict[str, float]:
    """The first value over each of the others."""
    first, *others = values
    return {name: values[first] / values[name] for name in others}


def written(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.3g} {unit}"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.1e} s"
