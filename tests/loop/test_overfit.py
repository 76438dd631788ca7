"""overfit_batch: passes what can learn, and says what went wrong otherwise."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from funcloop import optim, random
from funcloop._errors import ArgumentError, ConvergenceError
from funcloop.compile import jit
from funcloop.estimators import supervised, value_and_grad
from funcloop.loop import overfit_batch, seed_everything
from funcloop.stateless import stateless
from funcloop.step import TrainState, train_step
from tests.cases import MLP, classification
from tests.laws import assert_trees_equal, snapshot


def build(lr: float):
    model = stateless(MLP(dropout=0.0))
    tx = optim.adam(lr)
    state = TrainState.create(*model.init(random.key(1)), tx, key=random.key(3))
    return state, train_step(value_and_grad(supervised(model, F.cross_entropy)), tx)


def test_a_model_that_can_learn_passes_and_stays_as_it_was():
    state, step = build(0.05)
    before = snapshot(state)
    jitted = jit(step, donate=0, backend="aot_eager")
    losses = overfit_batch(state, jitted, classification(8, 4))
    assert losses[-1] <= 0.01 < losses[-2]
    assert len(losses) < 500
    assert_trees_equal(state, before)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([2.0, 2.0, 2.0], "went from 2 to 2 in 3 steps.*learning rate is not zero"),
        ([2.0, 3.0, 4.0], "from 2 to 4 in 3 steps.*lower the learning rate"),
        ([2.0, 1.0, 0.5], "from 2 to 0.5 in 3 steps.*more steps"),
        ([2.0, math.nan, 0.0], "from 2 to nan in 2 steps.*division by zero"),
    ],
)
def test_what_went_wrong_is_said(losses: list[float], message: str):
    def step(state: int, batch: object) -> tuple[int, dict[str, torch.Tensor]]:
        return state + 1, {"loss": torch.tensor(losses[state])}

    with pytest.raises(ConvergenceError, match=message):
        overfit_batch(0, step, (), steps=3)


def test_a_frozen_model_fails():
    state, step = build(0.0)
    with pytest.raises(ConvergenceError, match=r"learned to a loss of 0\.01"):
        overfit_batch(state, step, classification(8, 4), steps=5)
    with pytest.raises(ArgumentError, match="steps=0"):
        overfit_batch(state, step, classification(8, 4), steps=0)


def test_seed_everything_seeds_all_generators():
    import random as python_random

    import numpy as np

    was = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    try:
        drawn = []
        for seed in (3, 3, -1, 2**40):
            assert torch.equal(seed_everything(seed), random.key(seed))
            assert torch.are_deterministic_algorithms_enabled()
            drawn.append((python_random.random(), np.random.rand(), float(torch.rand(()))))
        assert drawn[0] == drawn[1]
        assert len({x for d in drawn for x in d}) == 9
        seed_everything(3, deterministic=False)
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(was[0])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, was[1]
