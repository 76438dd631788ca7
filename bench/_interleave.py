"""Times rivals in turn, so that whatever else the machine does falls on all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple

import torch

Rival = Callable[[], object]


class Timings(NamedTuple):
    """Medians in seconds a call, and how the first rival compares with each of the others.

    `ratios[name]` is the median over rounds of (first / name): below one, the first is faster.
    """

    medians: dict[str, float]
    ratios: dict[str, float]


def interleave(
    rivals: Mapping[str, Rival], rounds: int = 40, block: float = 0.01, budget: float = 20.0
) -> Timings:
    """Times each rival once a round, in rotating order, every other round backwards.

    Every measurement begins with a call that is not timed, so that no rival pays for the caches and
    the freed pages that the one before it left, or always follows the same one.

    Args:
        rivals: Functions of no argument; the first is the one that the others are compared with.
        rounds: How often at most.
        block: Seconds that one measurement should last; short calls are repeated to fill it.
        budget: Seconds after which no round begins, but for the first five.
    """
    calls = {name: _calls_in(rival, block) for name, rival in rivals.items()}
    spent: dict[str, list[float]] = {name: [] for name in rivals}
    names = list(rivals)
    end = time.perf_counter() + budget
    for number in range(rounds):
        if number >= 5 and time.perf_counter() > end:
            break
        for name in names if number % 2 == 0 else reversed(names):
            rivals[name]()
            spent[name].append(_time(rivals[name], calls[name]))
        names = names[1:] + names[:1]
    first = next(iter(rivals))
    ratios = {
        name: median(a / b for a, b in zip(spent[first], times, strict=True))
        for name, times in spent.items()
        if name != first
    }
    return Timings({name: median(times) for name, times in spent.items()}, ratios)


def _calls_in(rival: Rival, block: float) -> int:
    _time(rival, 3)  # compiles, fills caches
    return max(1, round(block / min(_time(rival, 1) for _ in range(3))))


def _time(rival: Rival, calls: int) -> float:
    _wait()
    began = time.perf_counter()
    for _ in range(calls):
        rival()
    _wait()
    return (time.perf_counter() - began) / calls


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
