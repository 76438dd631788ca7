"""Small charts as inline SVG, coloured by the classes of the page that they stand in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

#: In the units of the SVG: the whole, and the frame inside that holds the curves.
WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 44
#: Points drawn of one curve; of more, the lowest and the highest of each interval are kept.
MOST_POINTS = 800


class Series(NamedTuple):
    """One curve: its words in the legend, and points in the order of x."""

    name: str
    points: Sequence[tuple[float, float]]
    marked: bool = False


class Axis(NamedTuple):
    """From values to places in the SVG."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies."""
        scale = math.log10 if self.log else float
        low, high = scale(self.low), scale(self.high)
        share = (scale(value) - low) / ((high - low) or 1.0)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        return _decades(self.low, self.high) if self.log else _even(self.low, self.high)


def line_chart(series: Sequence[Series], x_label: str, y_label: str, log: bool) -> str:
    """Curves over a common axis; a NaN breaks its curve. Empty where no point is finite.

    With `log` the y axis is logarithmic where all values are positive and span a factor of 20.
    """
    drawn = [(x, y) for curve in series for x, y in curve.points if math.isfinite(y)]
    if not drawn:
        return ""
    x, y = _x_axis([p[0] for p in drawn]), _y_axis([p[1] for p in drawn], log)
    parts = [_grid(x, y, x_label, y_label)]
    parts += [_curve(curve, x, y, number) for number, curve in enumerate(series)]
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{body}</svg>'


def bar_chart(counts: Sequence[int], low: float, high: float, kind: str) -> str:
    """A histogram over [low, high] as a strip of bars, with its edges and zero written below."""
    width, height, top = 400, 72, max(counts) or 1
    step = width / len(counts)
    bars = "".join(
        f'<rect x="{i * step:.1f}" y="{height - height * n / top:.1f}" width="{step * 0.9:.1f}" '
        f'height="{height * n / top:.1f}"/>'
        for i, n in enumerate(counts)
        if n
    )
    edges = [(0.0, "start", low), (float(width), "end", high)]
    words = "".join(
        f'<text x="{x:.0f}" y="{height + 13}" text-anchor="{anchor}">{number(value)}</text>'
        for x, anchor, value in edges
    )
    zero = ""
    if low < 0 < high:
        at = width * -low / (high - low)
        zero = f'<line class="zero" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}"/>'
    return (
        f'<svg class="bars {escape(kind)}" viewBox="0 0 {width} {height + 16}" role="img">'
        f'{bars}{zero}<line class="base" x1="0" x2="{width}" y1="{height}" y2="{height}"/>'
        f"{words}</svg>"
    )


def number(value: float) -> str:
    """A number in at most four digits: 0.0123, 1.234e-05, 12,345."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def _x_axis(values: list[float]) -> Axis:
    return Axis(min(values), max(values), LEFT, WIDTH - RIGHT)


def _y_axis(values: list[float], log: bool) -> Axis:
    low, high = min(values), max(values)
    if log and 0 < 20 * low < high:
        return Axis(low / 1.1, high * 1.1, HEIGHT - BOTTOM, TOP, log=True)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    floor = 0.0 if low >= 0 and low < 0.3 * high else low - margin  # near zero: from zero on
    return Axis(floor, high + margin, HEIGHT - BOTTOM, TOP)


def _even(low: float, high: float) -> list[float]:
    if not low < high:
        return [low]
    raw = (high - low) / 5
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * f for f in (1, 2, 5, 10) if unit * f >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, len(powers) // 6)
    factors = (1, 2, 5) if len(powers) < 4 else (1,)
    ticks = [f * 10.0**p for p in powers[::every] for f in factors]
    return [tick for tick in ticks if low <= tick <= high]


def _grid(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in y.ticks():
        at = y.place(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{at + 4}" text-anchor="end">{number(tick)}</text>')
    for tick in x.ticks():
        at = x.place(tick)
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle">{tick:,.6g}</text>')
    middle = (TOP + bottom) / 2
    parts.append(f'<path class="frame" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
    parts.append(
        f'<text class="label" x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
        f'<text class="label" x="14" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle})">{escape(y_label)}</text>'
    )
    return "".join(parts)


def _curve(curve: Series, x: Axis, y: Axis, number: int) -> str:
    """A path with a gap at each value that is not finite, and dots where they are wanted."""
    path, dots, pen = [], [], "M"
    points = thinned(curve.points)
    for at, value in points:
        if not math.isfinite(value):
            pen = "M"
            continue
        place = f"{x.place(at)} {y.place(value)}"
        path.append(pen + place)
        pen = "L"
        if (curve.marked and len(points) <= 100) or len(points) == 1:
            dots.append(place)
    circles = "".join('<circle cx="{}" cy="{}" r="2.6"/>'.format(*place.split()) for place in dots)
    return f'<g class="series c{number % 6}"><path d="{"".join(path)}"/>{circles}</g>'


def thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most `MOST_POINTS` points: of each interval its lowest and its highest, in order.

    >>> spike = [(i, 100.0 if i == 777 else 0.0) for i in range(10_000)]
    >>> kept = thinned(spike)
    >>> len(kept) <= MOST_POINTS, (777, 100.0) in kept
    (True, True)
    """
    if len(points) <= MOST_POINTS:
        return points
    size = -(-len(points) // (MOST_POINTS // 2))
    kept: list[tuple[float, float]] = []
    for first in range(0, len(points), size):
        part = range(first, min(first + size, len(points)))
        finite = [i for i in part if math.isfinite(points[i][1])]
        ends = {f(finite, key=lambda i: points[i][1]) for f in (min, max)} if finite else {first}
        kept += [points[i] for i in sorted(ends)]
    return kept
