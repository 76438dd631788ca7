"""The fixture `compare`, and a short table of all ratios after the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from bench._interleave import Rival, Timings, interleave

Compare = Callable[..., Timings]
ROWS = pytest.StashKey[list[tuple[str, ...]]]()
HEAD = ("question", "ours", "rival", "its time", "ours / rival")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


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
        ours, *others = timings.medians
        benchmark.extra_info.update(
            medians=timings.medians, ratios=timings.ratios, question=question
        )
        request.config.stash[ROWS] += [
            (
                question,
                _seconds(timings.medians[ours]),
                name,
                _seconds(timings.medians[name]),
                f"{timings.ratios[name]:.2f}",
            )
            for name in others
        ]
        benchmark.pedantic(rivals[ours], rounds=5, warmup_rounds=1)
        return timings

    return run


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = terminalreporter.config.stash[ROWS]
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    terminalreporter.section("medians, interleaved; a ratio below 1 means that ours is faster")
    for row in (HEAD, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        terminalreporter.write_line("  ".join(cells).rstrip())


def _seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.1e} s"
