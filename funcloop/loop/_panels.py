"""Which curves of a run are drawn together, and under which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from funcloop.loop._record import Record

#: Part of the run before the name of a metric -> words, and whether its points are marked.
PARTS = {"train": ("training", False), "val": ("validation", True)}


class Curve(NamedTuple):
    """A name in the records, its words in a legend, and whether its points are marked."""

    name: str
    words: str
    marked: bool


class Panel(NamedTuple):
    """One set of axes.

    Attributes:
        title: Above it.
        label: Along the y axis, with the unit.
        curves: What it holds.
        scale: What values are multiplied by.
        log: Whether the y axis is logarithmic where values are positive and span a factor of 20.
    """

    title: str
    label: str
    curves: Sequence[Curve]
    scale: float = 1.0
    log: bool = False


#: Metric -> title, label, scale, log: those that a step reports, in the order of the panels.
KNOWN = {
    "loss": ("Loss", "mean loss per example", 1.0, True),
    "accuracy": ("Accuracy", "accuracy (%)", 100.0, False),
}
LAST = {
    "learning_rate": ("Learning rate", "learning rate (per update)", 1.0, False),
    "grad_norm": ("Gradient norm", "L2 norm before clipping", 1.0, True),
}
SPEED = {
    "examples_per_second": ("Speed", "examples per second", 1.0),
    "data_wait": ("Waiting for data", "share of the time (%)", 100.0),
}


def panels_of(records: Sequence[Record]) -> list[Panel]:
    """A panel for each metric of the records; those named `group/member` share one a group.

    Loss and accuracy come first, learning rate, gradient norm and speed last.

    >>> records = [{"step": 1, "train/loss": 1.0, "val/loss": 2.0, "val/f1/macro": 0.5}]
    >>> [(panel.title, len(panel.curves)) for panel in panels_of(records)]
    [('Loss', 2), ('f1', 1)]
    """
    names = dict.fromkeys(name for record in records for name in record)
    groups: dict[str, list[Curve]] = {}
    for name in names:
        part, _, metric = name.partition("/")
        if part in PARTS and metric != "weight":
            words, marked = PARTS[part]
            group, _, member = metric.partition("/")
            words = f"{words} {member}".strip().replace("_", " ")
            groups.setdefault(group, []).append(Curve(name, words, marked))
    middle = [group for group in groups if group not in KNOWN and group not in LAST]
    order = [group for group in (*KNOWN, *middle, *LAST) if group in groups]
    speeds = [
        Panel(title, label, [Curve(name, "training", False)], scale)
        for name, (title, label, scale) in SPEED.items()
        if name in names
    ]
    return [_panel(group, groups[group]) for group in order] + speeds


def points(records: Sequence[Record], name: str) -> list[tuple[float, float]]:
    """Step and value of every record that has the name."""
    return [(record["step"], record[name]) for record in records if name in record]


def _panel(group: str, curves: list[Curve]) -> Panel:
    title, label, scale, log = {**KNOWN, **LAST}.get(group, (group, group, 1.0, True))
    return Panel(title, label, curves, scale, log)
