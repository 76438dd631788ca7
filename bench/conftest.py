"""The fixtures `compare` and `tabulate`, and a short table of all ratios after the run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping

import pytest

from bench._interleave import Rival, Timings, interleave

Compare = Callable[..., Timings]
Tabulate = Callable[..., None]
ROWS = pytest.StashKey[list[tuple[str, ...]]]()
HEAD = ("question", "ours", "rival", "its figure", "ours / rival")


def has_jax() -> bool:
    """Whether rows for JAX and Optax can be made; they are rivals, not dependencies."""
    return all(importlib.util.find_spec(name) for name in ("jax", "optax"))


collect_ignore = [] if has_jax() else ["_workloads_jax.py"]  # the doctest plugin imports each file


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture
def tabulate(benchmark, request: pytest.FixtureRequest) -> Tabulate:
    """`tabulate(question, values, unit="s")`: figures measured once each, ours first."""

    def add(question: str, values: Mapping[str, float], unit: str = "s") -> None:
        ours = next(iter(values))
        ratios = {name: values[ours] / value for name, value in values.items() if name != ours}
        benchmark.extra_info[question] = {"values": dict(values), "ratios": ratios}
        _add_rows(request.config, question, values, ratios, unit)

    yield add
    benchmark.pedantic(lambda: None, rounds=1)  # pytest-benchmark keeps only what has been timed


@pytest.fixture
def compare(benchmark, request: pytest.FixtureRequest) -> Compare:
    """`compare(question, rivals, rounds=40, budget=20.0)`: the first rival is ours.

    Interleaves the rivals, writes medians and ratios to `extra_info` and to the table, and lets
    pytest-benchmark time ours once more on its own.
    """

    def run(
        question: str, rivals: Mapping[str, Rival], rounds: int = 40, budget: float = 20.0
    ) -> Timings:
        timings = interleave(rivals, rounds, budget=budget)
        benchmark.extra_info.update(
            medians=timings.medians, ratios=timings.ratios, question=question
        )
        _add_rows(request.config, question, timings.medians, timings.ratios, "s")
        benchmark.pedantic(next(iter(rivals.values())), rounds=5, warmup_rounds=1)
        return timings

    return run


def _add_rows(
    config: pytest.Config,
    question: str,
    values: Mapping[str, float],
    ratios: Mapping[str, float],
    unit: str,
) -> None:
    ours = next(iter(values))
    config.stash[ROWS] += [
        (question, _written(values[ours], unit), name, _written(values[name], unit), f"{ratio:.2f}")
        for name, ratio in ratios.items()
    ]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = terminalreporter.config.stash[ROWS]
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    terminalreporter.section("medians, interleaved; a ratio below 1 means that ours needs less")
    for row in (HEAD, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        terminalreporter.write_line("  ".join(cells).rstrip())


def _written(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.3g} {unit}"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.1e} s"
