"""How long is the wait for the first step of a GPT: cold, in a second process, ahead of time?"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench._process import Spent, python
from bench.conftest import Tabulate, has_jax

QUIET = {"FUNCLOOP_PROGRESS": "0"}


def first_step(way: str, cache: Path) -> Spent:
    return python("bench._first_step", way, "gpt", TORCHINDUCTOR_CACHE_DIR=str(cache), **QUIET)


def test_step_cold_compile(tmp_path: Path, tabulate: Tabulate):
    """A process without any cache, then a second one with what the first left behind."""
    ways = {"jit": "jit", "dynamo": "torch.compile, same step"}
    ways |= {"jax": "JAX jit + Optax"} if has_jax() else {}
    imports = first_step("nothing", tmp_path / "nothing").cpu
    cold, warm = ({w: first_step(w, tmp_path / w) for w in ways} for _ in ("cold", "warm"))
    name = {way: "jit" if way == "jit" else title for way, title in ways.items()}
    tabulate("GPT, cold first step", {name[w]: s.printed for w, s in cold.items()})
    cpu = {name[w]: s.cpu - imports for w, s in cold.items()}
    tabulate("GPT, cold first step, CPU seconds", cpu)
    tabulate("GPT, second process, first step", {name[w]: s.printed for w, s in warm.items()})


@pytest.mark.parametrize("way", ["load"])
def test_step_ahead_of_time(way: str, tmp_path: Path, tabulate: Tabulate):
    """Loading a package and its first step, against compiling it."""
    package = tmp_path / "step.pt2"
    saved = first_step(f"save:{package}", tmp_path / "cache")
    loaded = first_step(f"{way}:{package}", tmp_path / "cache")
    seconds = {"load_compiled": loaded.printed, "lower, compile, save": saved.printed}
    tabulate("GPT, ahead of time, first step", seconds)
