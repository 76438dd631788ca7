"""fit: the two lines, watched; cut anywhere and taken up again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from funcloop import optim, random
from funcloop._errors import ArgumentError, MissingExtraError
from funcloop._types import Estimate
from funcloop.compile import jit
from funcloop.estimators import supervised, value_and_grad
from funcloop.loop import Position, batches, evaluator, fit, read_records, watch_gradients
from funcloop.loop._meter import MEASURED
from funcloop.stateless import stateless
from funcloop.step import TrainState, eval_step, train_step
from tests.cases import MLP, classification
from tests.laws import assert_trees_close, assert_trees_equal, snapshot


def count(state: Tensor, batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """A step that adds up what it sees, and so remembers the order."""
    return state * 1.5 + batch.sum(), {"loss": batch.mean(), "weight": torch.tensor(len(batch))}


DATA = [torch.tensor([float(i)]) for i in range(5)]
ZERO = torch.tensor(0.0)


def run(**options: object):
    return fit(ZERO, count, options.pop("data", DATA), **{"progress": False, **options})  # type: ignore[arg-type]


def test_it_is_the_two_lines():
    state = ZERO
    for _ in range(2):
        for batch in DATA:
            state, _ = count(state, batch)
    result = run(epochs=2)
    assert torch.equal(result.state, state)
    assert result.position == Position(step=10, epoch=2, batch=0)


def test_where_a_run_ends():
    assert run(steps=3).position == Position(3, 0, 3)
    assert run(steps=12).position == Position(12, 2, 2)
    assert run(steps=12, epochs=1).position == Position(5, 1, 0)
    assert run(steps=2, epochs=9).position == Position(2, 0, 2)
    assert run(steps=0).position == Position()
    assert run(steps=5).position == run(epochs=1).position == Position(5, 1, 0)
    assert run(steps=10, position=Position(5, 1, 0)).position == Position(10, 2, 0)


@pytest.mark.parametrize("cut", range(1, 12))
@pytest.mark.parametrize(
    "data", [DATA, batches(random.key(0), torch.arange(9.0), 2)], ids=["list", "batches"]
)
def test_a_run_may_be_cut_anywhere(data: object, cut: int):
    def step(state: Tensor, batch: object) -> tuple[Tensor, dict[str, Tensor]]:
        return count(state, batch if isinstance(batch, Tensor) else batch[0])  # type: ignore[index]

    whole = fit(ZERO, step, data, steps=12, progress=False)  # type: ignore[arg-type]
    first = fit(ZERO, step, data, steps=cut, progress=False)  # type: ignore[arg-type]
    rest = fit(first.state, step, data, steps=12, position=first.position, progress=False)  # type: ignore[arg-type]
    assert torch.equal(rest.state, whole.state)
    assert rest.position == whole.position


def test_a_data_loader_and_data_with_a_number_called_epoch():
    class Numbered(list):
        epoch = 3

    loader = torch.utils.data.DataLoader(torch.arange(5.0), batch_size=1)
    for data in (loader, Numbered(DATA)):
        assert torch.equal(run(data=data, epochs=2).state, run(epochs=2).state)


def test_records_cover_every_step_once():
    history = run(epochs=2, log_every=2).history
    assert [(r["step"], r["epoch"]) for r in history] == [
        *[(2, 0), (4, 0), (5, 1)],
        *[(7, 1), (9, 1), (10, 2)],
    ]
    assert [r["train/loss"] for r in history[:3]] == [0.5, 2.5, 4.0]
    assert sum(r["train/weight"] for r in history) == 10
    assert all(isinstance(value, (int, float)) for r in history for value in r.values())


def test_evaluation_after_each_epoch_and_at_the_end():
    seen: list[float] = []

    def evaluate(state: Tensor) -> dict[str, float]:
        seen.append(float(state))
        return {"score": 1.0}

    history = run(steps=7, evaluate=evaluate).history
    assert [r["step"] for r in history if "val/score" in r] == [5, 7]
    assert len(seen) == 2
    assert len([r for r in run(steps=5, evaluate=evaluate).history if "val/score" in r]) == 1


def test_a_cut_at_the_end_of_an_epoch_evaluates_once():
    def evaluate(state: Tensor) -> dict[str, float]:
        return {"score": 1.0}

    first = run(steps=5, evaluate=evaluate)
    rest = run(steps=10, position=first.position, evaluate=evaluate)
    steps = [r["step"] for r in first.history + rest.history if "val/score" in r]
    assert steps == [5, 10]


def test_files(tmp_path: Path):
    result = run(epochs=2, log_every=2, log_dir=tmp_path / "made" / "here")
    assert read_records(tmp_path / "made" / "here" / "metrics.jsonl") == result.history
    assert (tmp_path / "made" / "here" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_tells_of_the_run(tmp_path: Path):
    data = batches(random.key(0), classification(23, 4), 8)
    state, step, _ = build()
    watch = watch_gradients(lambda *_: Estimate(state.params, ZERO, {}, {}, ZERO), ())
    options = {"config": {"name": "a trial"}, "watch": watch, "progress": False}
    fit(state, step, data, epochs=1, log_dir=tmp_path, **options)
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {
        *("metrics", "curves", "report", "run", "histograms", "events")
    }
    page = (tmp_path / "report.html").read_text()
    for words in ("a trial", "gradients", "hidden.weight", "[0, 3]"):
        assert words in page
    assert json.loads((tmp_path / "run.json").read_text())["config"] == {"name": "a trial"}


def test_without_a_state_that_has_params_no_histogram_is_drawn(tmp_path: Path):
    run(epochs=1, log_dir=tmp_path)
    assert json.loads((tmp_path / "histograms.json").read_text()) == {}


def test_ranks_above_0_show_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("funcloop.loop._fit.is_first", lambda: False)
    watched: list[Tensor] = []
    options = {"evaluate": lambda state: {"score": 1.0}, "watch": lambda s: watched.append(s) or {}}
    result = run(epochs=1, progress=True, log_dir=tmp_path / "never", **options)
    assert not (tmp_path / "never").exists()
    assert capsys.readouterr() == ("", "")
    assert len(result.history) == 2
    assert len(watched) == 1  # it may reduce over all ranks


def test_records_say_how_fast_and_what_was_waited_for():
    def slow() -> Iterator[Tensor]:
        for batch in DATA:
            time.sleep(0.02)
            yield batch

    def evaluate(state: Tensor) -> dict[str, float]:
        time.sleep(0.2)
        return {"score": 1.0}

    class Data:
        def __iter__(self) -> Iterator[Tensor]:
            return slow()

    history = run(data=Data(), epochs=2, log_every=5, evaluate=evaluate).history
    for record in (r for r in history if "train/loss" in r):
        assert record["data_wait"] > 0.8
        assert 25 < record["examples_per_second"] < 50  # the evaluation is no training
        assert record["memory_bytes"] > 2**26
    assert not [r for r in history if "val/score" in r and "data_wait" in r]


def test_a_run_taken_up_goes_on_in_the_same_file(tmp_path: Path):
    first = run(steps=4, log_every=2, log_dir=tmp_path)
    run(steps=4, log_every=2, log_dir=tmp_path, position=Position(2, 0, 2))
    rest = run(steps=8, log_every=2, log_dir=tmp_path, position=first.position)
    steps = [r["step"] for r in read_records(tmp_path / "metrics.jsonl")]
    assert steps == [2, 4, 5, 7, 8]
    assert rest.position.step == 8


def test_an_interrupted_run_leaves_its_records_and_curves(tmp_path: Path):
    def step(state: Tensor, batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if state > 5:
            raise KeyboardInterrupt
        return count(state, batch)

    with pytest.raises(KeyboardInterrupt):
        fit(ZERO, step, DATA, epochs=3, log_every=1, log_dir=tmp_path, progress=False)
    assert len(read_records(tmp_path / "metrics.jsonl")) > 1
    assert (tmp_path / "curves.png").exists()


def test_between_records_no_number_is_fetched():
    """A fetch waits for the device; it may happen at records only."""
    fetched: list[int] = []

    class Watched(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func.__name__ in ("item", "tolist", "cpu", "numpy", "__float__", "__bool__"):
                fetched.append(done[0])
            return super().__torch_function__(func, types, args, kwargs or {})

    done = [0]

    def step(state: Tensor, batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        done[0] += 1
        return state, {"loss": torch.tensor(1.0).as_subclass(Watched)}

    fit(ZERO, step, DATA, epochs=2, log_every=4, progress=False)
    assert sorted(set(fetched)) == [4, 5, 9, 10]


def test_data_that_run_out_are_refused():
    def once() -> Iterator[Tensor]:
        yield from DATA

    with pytest.raises(ArgumentError, match=r"none came in epoch 1.*not a generator"):
        run(data=once(), steps=7)
    assert run(data=once(), steps=4).position.step == 4


def test_a_run_without_an_end_is_refused():
    with pytest.raises(ArgumentError, match="neither steps nor epochs"):
        run()
    with pytest.raises(ArgumentError, match="log_every 0"):
        run(steps=1, log_every=0)


def test_progress_prints_evaluations(capsys: pytest.CaptureFixture[str]):
    run(epochs=2, progress=True, evaluate=lambda state: {"score": 0.25})
    assert "epoch 2   step 10      val/score 0.2500" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "options"),
    [("tqdm", {"progress": True}), ("matplotlib", {"log_dir": "never"})],
)
def test_a_missing_extra_is_named(
    module: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{module} is missing.*funcloop\[loop\]"):
        run(steps=1, **options)
    assert list(tmp_path.iterdir()) == []
    assert run(steps=1).position.step == 1  # neither is needed without a bar or a folder


def build():
    """A small run with dropout, and its evaluation."""
    model = stateless(MLP())
    tx = optim.adamw(1e-2)
    state = TrainState.create(*model.init(), tx, key=random.key(3))
    step = train_step(value_and_grad(supervised(model, F.cross_entropy)), tx)
    return state, step, eval_step(supervised(model, F.cross_entropy, train=False))


def test_the_mean_over_an_epoch_is_exact_for_any_batch_size():
    state, _, evaluate = build()
    arrays = classification(23, 4)
    whole = evaluator(evaluate, batches(None, arrays, 23))(state)
    for batch_size in (1, 4, 7, 50):
        got = evaluator(evaluate, batches(None, arrays, batch_size))(state)
        assert got == pytest.approx(whole, rel=1e-6)
    assert list(whole) == ["loss", "accuracy"]


def test_an_evaluation_without_data_is_refused():
    state, _, evaluate = build()
    with pytest.raises(ArgumentError, match="no batch came"):
        evaluator(evaluate, [])(state)


def test_a_padded_run_has_one_graph_and_the_metrics_of_every_step():
    """Donated buffers are overwritten: a metric gathered earlier must not change with them."""
    data = batches(random.key(0), classification(23, 4), 8)
    state, step, _ = build()
    plain = fit(state, step, data, epochs=3, log_every=7, progress=False)
    jitted = jit(step, donate=0, backend="aot_eager")
    state = snapshot(state)  # the plain run's last state still holds the key of the first
    donated = fit(state, jitted, data, epochs=3, log_every=7, progress=False)
    assert jitted.traces == 1
    assert_trees_close(donated.state, plain.state)
    for got, want in zip(donated.history, plain.history, strict=True):
        measured = dict.fromkeys(MEASURED, 0)
        assert {**got, **measured} == pytest.approx({**want, **measured}, rel=1e-5)


def test_a_run_of_steps_resumes_bit_for_bit():
    data = batches(random.key(0), classification(23, 4), 8)
    state, step, _ = build()
    whole = fit(state, step, data, steps=8, progress=False)
    first = fit(state, step, data, steps=5, progress=False)
    rest = fit(first.state, step, data, steps=8, position=first.position, progress=False)
    assert_trees_equal(rest.state, whole.state)
