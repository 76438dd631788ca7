"""The fixtures `compare` and `tabulate`, and a short table of all ratios after the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from bench._interleave import Rival, Timings, interleave
from bench._rivals import has_jax
from bench._table import Row, lines, plain_ratios, rows

Compare = Callable[..., Timings]
Tabulate = Callable[..., None]
ROWS = pytest.StashKey[list[Row]]()

collect_ignore = [] if has_jax() else ["_workloads_jax.py"]  # the doctest plugin imports each file


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture
def tabulate(benchmark, request: pytest.FixtureRequest) -> Tabulate:
    """`tabulate(question, values, unit="s")`: figures measured once each, ours first."""

    def add(question: str, values: Mapping[str, float], unit: str = "s") -> None:
        ratios = plain_ratios(values)
        benchmark.extra_info[question] = {"values": dict(values), "ratios": ratios}
        request.config.stash[ROWS] += rows(question, values, ratios, unit)

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
        request.config.stash[ROWS] += rows(question, timings.medians, timings.ratios)
        benchmark.pedantic(next(iter(rivals.values())), rounds=5, warmup_rounds=1)
        return timings

    return run


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = terminalreporter.config.stash[ROWS]
    if found:
        terminalreporter.section("medians, interleaved; a ratio below 1 means that ours needs less")
        for line in lines(found):
            terminalreporter.write_line(line)
