"""How much memory does the 25M-parameter step need at its peak?"""

from __future__ import annotations

import sys

import pytest

from bench._process import RETURN_FREED, python
from bench._rivals import COMPILED, EAGER, JAX, OURS, has_jax
from bench.conftest import Tabulate


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self")
def test_step_memory(tabulate: Tabulate):
    ways = {"jit": OURS, "eager": EAGER, "compiled": COMPILED}
    ways |= {"jax": JAX} if has_jax() else {}

    def peak(way: str, width: int) -> float:
        return python("bench._peak_step", way, str(width), **RETURN_FREED).printed

    values = {title: (peak(way, 2048) - peak(way, 64)) / 1e6 for way, title in ways.items()}
    tabulate("wide train step, peak memory", values, unit="MB")
