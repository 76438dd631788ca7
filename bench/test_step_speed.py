"""Is the pure step as fast as the imperative loops that it replaces, and as JAX's?"""

from __future__ import annotations

import pytest

from bench._rivals import assert_same_losses, imperative_rivals, overhead_rivals
from bench.conftest import Compare


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "wide"])
def test_step_speed(name: str, compare: Compare):
    rivals = imperative_rivals(name)
    assert_same_losses(rivals)
    compare(f"{name} train step", rivals, budget=15.0)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
def test_step_overhead(compare: Compare):
    """Two layers of eight units: what is timed is the call."""
    rivals = overhead_rivals("tiny")
    assert_same_losses(rivals)
    compare("tiny train step: overhead", rivals, budget=15.0)
