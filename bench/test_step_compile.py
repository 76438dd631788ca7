"""How long is the wait for the first step of a GPT: cold, in a second process, ahead of time?"""

from __future__ import annotations

from pathlib import Path

from bench._process import Spent, python
from bench._rivals import JAX, OURS, SAME_STEP, has_jax
from bench.conftest import Tabulate

QUIET = {"FUNCLOOP_PROGRESS": "0"}


def first_step(way: str, cache: Path) -> Spent:
    return python("bench._first_step", way, "gpt", TORCHINDUCTOR_CACHE_DIR=str(cache), **QUIET)


def test_step_cold_compile(tmp_path: Path, tabulate: Tabulate):
    """A process without any cache, then a second one with what the first left behind."""
    ways = {"jit": OURS, "dynamo": SAME_STEP} | ({"jax": JAX} if has_jax() else {})
    imports = first_step("nothing", tmp_path / "nothing").cpu
    cold, warm = ({way: first_step(way, tmp_path / way) for way in ways} for _ in range(2))
    rows = {
        "GPT, first step, cold": {way: spent.printed for way, spent in cold.items()},
        "GPT, first step, cold, CPU time": {way: s.cpu - imports for way, s in cold.items()},
        "GPT, first step, second process": {way: spent.printed for way, spent in warm.items()},
    }
    for question, seconds in rows.items():
        tabulate(question, {ways[way]: value for way, value in seconds.items()})


def test_step_ahead_of_time(tmp_path: Path, tabulate: Tabulate):
    """Loading a package and its first step, against making it."""
    package = tmp_path / "step.pt2"
    saved = first_step(f"save:{package}", tmp_path / "cache")
    loaded = first_step(f"load:{package}", tmp_path / "cache")
    seconds = {"load_compiled": loaded.printed, "lower, compile, save": saved.printed}
    tabulate("GPT, first step, ahead of time", seconds)
