"""A run that is cut goes on as if it had not been: state, position, records, bit for bit."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from funcloop import optim, precision, random, schedules
from funcloop._errors import ArgumentError, StructureError
from funcloop.checkpoint import Checkpoints, restore
from funcloop.compile import jit
from funcloop.estimators import supervised
from funcloop.loop import FitResult, KeyedSampler, Position, batches, fit, prefetch, read_records
from funcloop.loop._meter import MEASURED
from funcloop.stateless import stateless
from funcloop.step import TrainState, train_step
from tests.cases import MLP, classification
from tests.laws import assert_trees_close, assert_trees_equal, snapshot


class Cut(Exception):
    pass


def count(state: Tensor, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """A step that adds up what it sees, and so remembers the order."""
    x = batch if isinstance(batch, Tensor) else batch[0]
    return state * 1.5 + x.sum(), {"loss": x.mean() / 3, "weight": torch.tensor(len(x))}


def cut_at(calls: int, action: Callable[[], object]) -> Callable[..., Any]:
    """`count`, which does something else in its last call."""
    left = [calls]

    def step(state: Tensor, batch: Any):
        left[0] -= 1
        if left[0] == 0:
            action()
        return count(state, batch)

    return step


def fail() -> None:
    raise Cut


def interrupt(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


ZERO = torch.tensor(0.0)
X = torch.arange(9.0)


def data(kind: str) -> Any:
    if kind == "list":
        return [torch.tensor([float(i)]) for i in range(5)]
    if kind == "batches":
        return batches(random.key(0), X, 2)
    loader = DataLoader(X, batch_size=2, sampler=KeyedSampler(random.key(0), X))
    return prefetch(loader, "cpu") if kind == "prefetch" else loader


def run(folder: Path, step: Callable[..., Any] = count, kind: str = "list", **options: Any):
    options = {
        "steps": 13,
        "log_every": 4,
        "evaluate": lambda state: {"loss": float(state) / 7},
    } | options
    kept = options.pop("checkpoints", Checkpoints(folder / "kept", keep_best="-val/loss"))
    return fit(
        *(ZERO, step, options.pop("data", data(kind))),
        **{"checkpoints": kept, "log_dir": folder, "progress": False} | options,
    )


def untimed(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """Without what a clock or the process says."""
    return [{n: x for n, x in record.items() if n not in MEASURED} for record in history]


def assert_same_run(got: FitResult, want: FitResult, folder: Path) -> None:
    assert_trees_equal(got.state, want.state)
    assert got.position == want.position
    assert untimed(got.history) == untimed(want.history)
    assert untimed(read_records(folder / "metrics.jsonl")) == untimed(want.history)
    times = [record["time"] for record in got.history]
    assert times == sorted(times)


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch: pytest.MonkeyPatch):
    """A picture takes longer than all the steps of these tests."""
    monkeypatch.setattr("funcloop.loop._run_folder.plot_curves", lambda *_: None)


@pytest.mark.parametrize("kind", ["list", "batches", "loader", "prefetch"])
@pytest.mark.parametrize("save_every", [None, 1, 3])
def test_a_crash_at_any_step(tmp_path: Path, kind: str, save_every: int | None):
    want = run(tmp_path / "whole", kind=kind, checkpoints=None)
    for calls in range(1, 14):
        folder = tmp_path / str(calls)
        with pytest.raises(Cut):
            run(folder, cut_at(calls, fail), kind, save_every=save_every)
        kept = Checkpoints(folder / "kept")
        saved = restore(kept.latest(), at="run/position/step") if kept.latest() else 0
        lost = save_every or 5
        assert calls - 1 - lost < saved < calls
        assert_same_run(run(folder, kind=kind, save_every=save_every), want, folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [{"steps": 13}, {"steps": None, "epochs": 2}], ids=str)
def test_a_signal_saves_and_leaves(tmp_path: Path, number: signal.Signals, options: dict[str, Any]):
    want = run(tmp_path / "whole", checkpoints=None, **options)
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    for calls in range(1, want.position.step + 1):
        folder = tmp_path / str(calls)
        with pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
            run(folder, cut_at(calls, interrupt(number)), **options)
        assert isinstance(caught.value, KeyboardInterrupt) == (number == signal.SIGINT)
        assert getattr(caught.value, "code", None) == (143 if number == signal.SIGTERM else None)
        assert Checkpoints(folder / "kept").steps()[-1] == calls  # the step is not lost
        assert_same_run(run(folder, **options), want, folder)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_during_the_evaluation(tmp_path: Path):
    want = run(tmp_path / "whole", checkpoints=None)

    def evaluate(state: Tensor) -> dict[str, float]:
        interrupt(signal.SIGTERM)()
        return {"loss": float(state) / 7}

    for step in (5, 10, 13):
        with pytest.raises(SystemExit):
            run(tmp_path, evaluate=evaluate)
        assert Checkpoints(tmp_path / "kept").steps()[-1] == step
    assert_same_run(run(tmp_path), want, tmp_path)


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path):
    def twice() -> None:
        interrupt(signal.SIGINT)()
        interrupt(signal.SIGINT)()
        raise AssertionError("still here")

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, cut_at(7, twice))
    assert Checkpoints(tmp_path / "kept").steps() == [5]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_of_others(tmp_path: Path):
    """A handler of the user's own is called, after the save; what is ignored stays ignored."""
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        result = run(tmp_path, cut_at(7, interrupt(signal.SIGTERM)))
        assert (told, result.position) == ([signal.SIGTERM], Position(7, 1, 2))
        assert Checkpoints(tmp_path / "kept").steps() == [5, 7]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert run(tmp_path, cut_at(1, interrupt(signal.SIGTERM))).position.step == 13
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_checkpoints_no_handler_is_touched(tmp_path: Path):
    def look() -> None:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    run(tmp_path, cut_at(1, look), checkpoints=None)


def test_in_another_thread_it_saves_without_listening(tmp_path: Path):
    results: list[FitResult] = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path)))
    thread.start()
    thread.join()
    assert results[0].position.step == 13
    assert Checkpoints(tmp_path / "kept").steps()[-1] == 13


def test_other_ranks_read_and_do_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    want = run(tmp_path, steps=6)
    before = sorted(os.listdir(tmp_path / "kept"))
    monkeypatch.setattr("funcloop.loop._fit.is_first", lambda: False)
    result = run(tmp_path, steps=7)
    assert untimed(result.history[: len(want.history)]) == untimed(want.history)
    assert result.position.step == 7
    assert sorted(os.listdir(tmp_path / "kept")) == before


def test_a_finished_run_is_returned(tmp_path: Path):
    want = run(tmp_path)
    assert_same_run(run(tmp_path, cut_at(1, fail)), want, tmp_path)
    more = run(tmp_path, steps=14)
    assert more.position == Position(14, 2, 4)


def test_the_best_is_kept_with_what_was_measured(tmp_path: Path):
    kept = Checkpoints(tmp_path, keep_last=1, keep_best="val/score")
    scores = iter([0.5, 0.9, 0.7])
    run(tmp_path, checkpoints=kept, evaluate=lambda state: {"score": next(scores)})
    assert kept.steps() == [10, 13]
    assert restore(kept.best(), at="run/position") == {"step": 10, "epoch": 2, "batch": 0}
    assert_trees_equal(
        kept.restore(ZERO, best=True, at="state"), run(tmp_path / "b", steps=10).state
    )


def test_a_metric_that_is_not_measured_is_refused(tmp_path: Path):
    with pytest.raises(StructureError, match=r"keep_best 'val/f1', measured are \['val/loss'\]"):
        run(tmp_path, checkpoints=Checkpoints(tmp_path, keep_best="val/f1"))


def test_an_order_that_is_gone_is_refused(tmp_path: Path):
    loader = DataLoader(X, batch_size=2, shuffle=True)
    with pytest.raises(ArgumentError, match=r"RandomSampler, whose order is gone.*KeyedSampler"):
        run(tmp_path, data=loader)
    with pytest.raises(ArgumentError, match="order is gone"):
        run(tmp_path, data=prefetch(loader, "cpu"))
    with pytest.raises(ArgumentError, match="order is gone"):
        run(tmp_path, data=loader, checkpoints=None, position=Position(7, 1, 2))
    assert run(tmp_path, data=loader, checkpoints=None).position.step == 13


def test_other_data_in_the_middle_of_an_epoch_are_refused(tmp_path: Path):
    with pytest.raises(Cut):
        run(tmp_path, cut_at(8, fail), save_every=1)
    with pytest.raises(ArgumentError, match=r"4 batches an epoch, and it was 5"):
        run(tmp_path, data=data("list")[:4])
    run(tmp_path, steps=10)
    assert run(tmp_path, data=data("list")[:4]).position == Position(13, 2, 3)


def test_two_places_to_start_from_are_refused(tmp_path: Path):
    run(tmp_path, steps=3)
    with pytest.raises(ArgumentError, match=r"position= or from its checkpoints: Position\(step=3"):
        run(tmp_path, position=Position(3, 0, 3))


def test_another_state_is_refused(tmp_path: Path):
    run(tmp_path, steps=3)
    with pytest.raises(StructureError, match=r"float32 \(\) in the file, wanted float64 \(\)"):
        fit(ZERO.double(), count, data("list"), steps=9, checkpoints=Checkpoints(tmp_path / "kept"))


def test_wrong_steps_between_saves_are_refused(tmp_path: Path):
    for options in ({"save_every": 0}, {"save_every": 1, "checkpoints": None}):
        with pytest.raises(ArgumentError, match="give both, or neither"):
            run(tmp_path, **options)


def test_other_metrics_after_a_cut_are_refused(tmp_path: Path):
    with pytest.raises(Cut):
        run(tmp_path, cut_at(3, fail), save_every=1)

    def other(state: Tensor, batch: Tensor):
        return state, {"loss": batch.mean()}

    with pytest.raises(StructureError, match="every step has the same metrics"):
        run(tmp_path, other)


def test_keyed_data_are_entered_without_reading():
    """Batches before the position cost nothing where the order is a function of a key."""
    read: list[int] = []

    class Watched(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, index: int) -> Tensor:
            read.append(index)
            return X[index]

    loader = DataLoader(Watched(), batch_size=2, sampler=KeyedSampler(random.key(0), X))
    fit(ZERO, count, loader, steps=9, position=Position(8, 1, 3), progress=False)
    order = random.permutation(random.fold_in(random.key(0), 1), 9).tolist()
    assert read == order[6:]


def test_a_keyed_sampler_orders_as_batches_does():
    key = random.key(3)
    loader = DataLoader(X, batch_size=4, sampler=KeyedSampler(key, len(X)))
    for epoch in range(3):
        got = torch.cat(list(loader))
        want = torch.cat([x for x, _ in batches(key, X, 4).epoch(epoch)])[:9]
        assert torch.equal(got, want)
    with pytest.raises(ArgumentError, match="0 examples"):
        KeyedSampler(key, 0)


@pytest.mark.parametrize("options", [
    {"batch_size": None},
    {"batch_size": 2, "drop_last": True},
    {"batch_size": 3, "num_workers": 2},
    {"batch_size": 3, "num_workers": 2, "persistent_workers": True},
], ids=str)  # fmt: skip
def test_loaders_of_every_kind_go_on(options: dict[str, Any]):
    def loader() -> DataLoader:
        return DataLoader(X, sampler=KeyedSampler(random.key(0), X), **options)

    def step(state: Tensor, batch: Tensor):
        return count(state, torch.atleast_1d(batch))

    whole = fit(ZERO, step, loader(), steps=8, progress=False)
    first = fit(ZERO, step, loader(), steps=5, progress=False)
    rest = fit(first.state, step, loader(), steps=8, position=first.position, progress=False)
    assert torch.equal(rest.state, whole.state)


def training():
    """Dropout, AdamW, warm-up, a loss scale that grows, accumulation over two batches."""
    model = stateless(MLP())
    tx = optim.accumulate(optim.adamw(schedules.warmup_cosine(1e-2, 3, 20)), 2)
    params, buffers = model.init(random.key(1))
    scale = precision.dynamic(2.0**10, growth_interval=2)
    grad_fn = precision.loss_scaled(supervised(model, F.cross_entropy), None, scale)
    key = random.key(3)
    state = TrainState.create(params, buffers, tx, key=key, loss_scale=grad_fn.loss_scale)
    return state, train_step(grad_fn, tx)


def test_b04_resume_in_the_middle(tmp_path: Path):
    """Step 3 is inside the epoch and inside a window of accumulation."""
    examples = TensorDataset(*classification(40, 4))

    def go(steps: int, kept: Checkpoints | None) -> FitResult:
        state, step = training()
        loader = DataLoader(examples, batch_size=4, sampler=KeyedSampler(random.key(0), examples))
        return fit(state, step, loader, steps=steps, checkpoints=kept, progress=False, log_every=2)

    straight = go(7, None)
    half = go(3, Checkpoints(tmp_path))
    assert any(bool((x != 0).any()) for x in half.state.opt_state.grads.values())
    assert float(half.state.loss_scale.scale) != 2.0**10
    again = go(7, Checkpoints(tmp_path))
    assert_trees_equal(again.state, straight.state)
    assert again.position == straight.position == Position(7, 0, 7)


def test_across_jit_and_eager(tmp_path: Path):
    """Either may go on with what the other has saved; the results agree within rounding."""
    examples = batches(random.key(0), classification(24, 4), 4)
    state, step = training()
    jitted = jit(step, donate=0, backend="aot_eager")
    want = fit(state, step, examples, steps=9, progress=False).state
    for name, order in {"out": (jitted, step), "in": (step, jitted)}.items():
        kept = Checkpoints(tmp_path / name)
        for steps, chosen in zip((4, 9), order, strict=True):
            fresh = snapshot(state)  # a donated state is used up
            result = fit(fresh, chosen, examples, steps=steps, checkpoints=kept, progress=False)
        assert_trees_close(result.state, want)
    assert jitted.traces == 1
