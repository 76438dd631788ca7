"""The learning-rate finder: exact grid, unbiased smoothing, no trace left behind."""

from __future__ import annotations

import math
import random as python_random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from funcloop import optim, random, schedules
from funcloop._errors import ArgumentError, NonFiniteError, StructureError
from funcloop.compile import jit
from funcloop.estimators import supervised, value_and_grad
from funcloop.loop import KeyedSampler, batches, fit, lr_finder, plot_sweep
from funcloop.loop._lr_finder import smooth
from funcloop.stateless import stateless
from funcloop.step import TrainState, train_step
from tests.cases import MLP, classification
from tests.laws import assert_trees_equal, snapshot


def build(tx: optim.Transform = optim.adamw(1e-2)):  # noqa: B008
    """A state, its gradient with dropout, and data."""
    model = stateless(MLP())
    grad_fn = value_and_grad(supervised(model, F.cross_entropy))
    return TrainState.create(*model.init(random.key(1)), tx, key=random.key(3)), grad_fn


DATA = batches(random.key(0), classification(40, 4), 8)


def fake(losses: list[float], used: list[float] | None = None):
    """Steps that report these losses in turn: the state counts them."""

    def make_step(lr: Tensor):
        def step(state: Tensor, batch: object) -> tuple[Tensor, dict[str, Tensor]]:
            if used is not None:
                used.append(float(lr))
            return state + 1, {"loss": torch.tensor(losses[int(state)], dtype=torch.float64)}

        return step

    return make_step


ZERO = torch.tensor(0)
ONE_BATCH = [torch.zeros(1)]


def test_b17_smoothing_and_grid():
    sweep = lr_finder(ZERO, fake([4.0, 2.0, 2.0, 2.0, 2.0]), ONE_BATCH, 1e-4, 1.0, 5)
    assert sweep.rates == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1], rel=1e-12)
    assert (sweep.rates[0], sweep.rates[-1]) == (1e-4, 1.0)
    assert sweep.smoothed[:3] == pytest.approx([4.0, 2.989899, 2.653244], rel=1e-6)
    assert lr_finder(ZERO, fake([3.0] * 9), ONE_BATCH, steps=9).smoothed == [3.0] * 9


def test_b17_the_rate_of_a_loss_is_the_one_that_was_used_for_it():
    used: list[float] = []
    sweep = lr_finder(ZERO, fake([5.0, 4.0, 3.0, 2.0], used), ONE_BATCH, 1e-3, 1.0, 4)
    assert sweep.rates == used
    assert sweep.losses == [5.0, 4.0, 3.0, 2.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_b17_a_loss_that_is_not_finite_stops_the_sweep_and_is_never_suggested(bad: float):
    used: list[float] = []
    sweep = lr_finder(ZERO, fake([4.0, 3.0, 2.9, bad, 0.0], used), ONE_BATCH, 1e-4, 1.0, 5)
    assert len(used) == 4
    assert sweep.losses == [4.0, 3.0, 2.9]
    assert sweep.diverged_at == pytest.approx(0.1)
    assert sweep.suggestion in sweep.rates
    with pytest.raises(NonFiniteError, match="at the first batch"):
        lr_finder(ZERO, fake([bad]), ONE_BATCH)


def test_b17_training_after_the_finder_is_bit_identical():
    state, grad_fn = build()
    tx = optim.adamw(1e-2)
    before = snapshot(state)
    step = train_step(grad_fn, tx)
    plain = fit(state, step, DATA, steps=12, progress=False)
    probe = jit(
        lambda lr, state, batch: train_step(grad_fn, optim.adamw(lr))(state, batch),
        donate=1,
        backend="aot_eager",
    )
    sweep = lr_finder(state, lambda lr: partial(probe, lr), DATA, 1e-5, 10.0, 30)
    assert len(sweep.losses) > 10
    assert probe.traces == 1
    assert_trees_equal(state, before)  # donated and all the same whole
    assert_trees_equal(fit(state, step, DATA, steps=12, progress=False).state, plain.state)


def test_b17_generators_are_where_they_were():
    """A shuffling DataLoader with its own generator, and a data set that draws from all others."""

    class Noisy(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            x, y = super().__getitem__(index)
            return x + torch.randn(()) + np.random.randn() + python_random.random(), y

    x, y = classification(40, 4)
    own = torch.Generator().manual_seed(5)
    state, grad_fn = build()

    def order(probed: bool) -> list[object]:
        loader = DataLoader(Noisy(x, y), 8, shuffle=True, generator=own.manual_seed(5))
        torch.manual_seed(0), np.random.seed(0), python_random.seed(0)
        if probed:
            lr_finder(state, lambda lr: train_step(grad_fn, optim.adamw(lr)), loader, steps=7)
        return [x.double().tolist() for x, _ in loader] + [torch.rand(3).tolist()]

    assert order(probed=True) == order(probed=False)


def test_b17_a_keyed_sampler_is_where_it_was():
    x, y = classification(40, 4)
    state, grad_fn = build()
    loader = DataLoader(TensorDataset(x, y), 8, sampler=KeyedSampler(random.key(0), 40))
    first = [x for x, _ in loader]
    want = [x for x, _ in loader]
    loader.sampler.seek(1)  # type: ignore[attr-defined]
    lr_finder(state, lambda lr: train_step(grad_fn, optim.adamw(lr)), loader, steps=12)
    assert_trees_equal([x for x, _ in loader], want)
    assert not torch.equal(first[0], want[0])


def test_the_rate_replaces_a_schedule_and_moves_no_other_part_of_the_state():
    state, grad_fn = build(optim.adamw(schedules.warmup_cosine(1e-2, 5, 50)))
    seen: list[float] = []

    def make_step(lr: Tensor):
        step = train_step(grad_fn, optim.adamw(lr))

        def watched(state: TrainState, batch: object):
            state, metrics = step(state, batch)  # type: ignore[arg-type]
            seen.append(float(metrics["learning_rate"]))
            return state, metrics

        return watched

    sweep = lr_finder(state, make_step, DATA, 1e-5, 1e-3, 6)
    assert seen == sweep.rates


def test_real_training_has_a_sensible_suggestion():
    state, grad_fn = build(optim.sgd(0.1))
    x, _ = classification(400, 4)
    data = batches(random.key(0), (x, x[:, :3].argmax(-1)), 16)
    sweep = lr_finder(state, lambda lr: train_step(grad_fn, optim.sgd(lr)), data, 1e-5, 1e4, 80)
    assert sweep.suggestion is not None
    assert 1e-3 < sweep.suggestion < 100
    assert sweep.diverged_at is not None


def test_a_loss_that_has_risen_ends_the_sweep():
    rising = [2.0] * 3 + [1e3] * 50
    sweep = lr_finder(ZERO, fake(rising), ONE_BATCH, steps=50)
    assert sweep.smoothed[-1] > 8
    assert sweep.smoothed[-2] <= 8
    assert sweep.diverged_at == sweep.rates[-1]
    negative = lr_finder(ZERO, fake([-5.0, -5.1, -4.9, -5.2]), ONE_BATCH, steps=4)
    assert negative.diverged_at is None  # four times a negative loss is no rise


def test_a_loss_that_never_falls_gives_no_suggestion():
    for losses in ([1.0, 1.0, 1.1, 1.2], [0.1] * 40):
        sweep = lr_finder(ZERO, fake(losses), ONE_BATCH, steps=len(losses))
        assert sweep.suggestion is None
    assert lr_finder(ZERO, fake([1.0, math.nan]), ONE_BATCH).suggestion is None
    steep = lr_finder(ZERO, fake([9.0, 9.0, 9.0, 1.0, 1.0, 1.0]), ONE_BATCH, 1e-5, 1.0, 6)
    assert steep.suggestion == pytest.approx(1e-3)
    jump = [9.0, 9.0, 8.0, 7.0, 7.0, 12.0, 30.0, 30.0, 8.0]
    back = lr_finder(ZERO, fake(jump), ONE_BATCH, 1e-8, 1.0, 9)  # the fall from 30 is no learning
    assert back.suggestion == pytest.approx(1e-6)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_smoothing_is_a_mean_of_what_was_seen(losses: list[float]):
    for n, value in enumerate(smooth(losses), 1):
        assert min(losses[:n]) - 1e-9 <= value <= max(losses[:n]) + 1e-9


@pytest.mark.parametrize(
    "options", [(0.0, 1.0, 5), (1.0, 1.0, 5), (1e-3, 1.0, 1), (1e-3, math.inf, 9)]
)
def test_a_range_that_is_none_is_refused(options: tuple[float, float, int]):
    with pytest.raises(ArgumentError, match="0 < lr_min < lr_max"):
        lr_finder(ZERO, fake([1.0]), ONE_BATCH, *options)


def test_data_that_a_probe_would_change_are_refused():
    with pytest.raises(ArgumentError, match="list_iterator is used up"):
        lr_finder(ZERO, fake([1.0]), iter(ONE_BATCH))
    with pytest.raises(ArgumentError, match="no batch came"):
        lr_finder(ZERO, fake([1.0]), [])
    loader = DataLoader([1.0, 2.0], num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="persistent_workers"):
        lr_finder(ZERO, fake([1.0]), loader)


def test_a_step_without_a_loss_is_refused():
    def make_step(lr: Tensor):
        return lambda state, batch: (state, {"cost": torch.tensor(1.0)})

    with pytest.raises(StructureError, match=r"it has \['cost'\]"):
        lr_finder(ZERO, make_step, ONE_BATCH)


def test_the_picture_has_words_and_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    matplotlib = pytest.importorskip("matplotlib", reason="the loop extra is not installed")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    sweep = lr_finder(ZERO, fake([4.0, 3.0, 1.0, math.nan]), ONE_BATCH, 1e-4, 1.0, 5)
    drawn = plot_sweep(sweep, tmp_path / "rates.svg").read_text()
    for words in ("steepest descent", "learning rate", "mean loss per example", "diverged at 0.1"):
        assert words in drawn
