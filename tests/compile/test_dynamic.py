"""One graph for all batch sizes, and arguments chosen by name or position."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import funcloop as fl
from funcloop._errors import ArgumentError, CompileError, ShapeError, StructureError, TraceError

SIZES = (6, 5, 2, 33, 1, 9, 1, 0)


def batch(rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, rows * 3, device=device).view(rows, 3)
    return x, torch.arange(rows, device=device) % 4


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_training_run_with_batches_of_every_size(backend, device):
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4)).to(device)
    model, tx = fl.stateless(net), fl.optim.adamw(1e-2)
    plain = fl.train_step(fl.value_and_grad(fl.supervised(model, F.cross_entropy)), tx)
    step = fl.jit(plain, donate=0, dynamic="batch", backend=backend)
    want = fl.TrainState.create(*model.init(), tx, key=fl.random.key(0).to(device))
    got = fl.tree.map(torch.clone, want)
    for rows in SIZES:
        got, metrics = step(got, batch(rows, device))
        want, expected = plain(want, batch(rows, device))
        fl.testing.assert_trees_close(got, want, 1e-4)
        fl.testing.assert_trees_close(metrics, expected, 1e-4)
    assert step.traces == 3  # sizes 0 and 1 are constants of their own graphs
    assert "argument 1/1 has shape (0,), was (-1,)" in step.explain_retrace()


@pytest.mark.parametrize("dynamic", [1, "x", ("x",), [1]])
def test_an_argument_is_found_by_name_and_by_position(dynamic):
    f = fl.jit(lambda scale, x: scale * x, dynamic=dynamic, backend="aot_eager")
    for rows in (2, 3, 7):
        assert f(torch.tensor(2.0), torch.ones(rows)).tolist() == [2.0] * rows
        assert f(torch.tensor(2.0), x=torch.ones(rows)).tolist() == [2.0] * rows
    assert f.traces == 2  # by position and by name


def test_a_static_argument_is_found_by_name_and_by_position():
    for static in (1, "n"):
        f = fl.jit(lambda x, n: x.repeat(n), static=static, backend="aot_eager")
        assert f(torch.ones(1), 3).shape == f(torch.ones(1), n=3).shape == (3,)


@pytest.mark.parametrize("option", ["static", "dynamic"])
def test_an_argument_that_does_not_exist_is_refused(option):
    with pytest.raises(ArgumentError, match="batsch"):
        fl.jit(lambda state, batch: state, **{option: "batsch"})
    with pytest.raises(ArgumentError, match="2"):
        fl.jit(lambda state, batch: state, **{option: 2})


def test_a_size_that_the_graph_is_wrong_for_gets_its_own():
    def pairs(x):
        return x.reshape(-1, 2).sum(1) if x.shape[0] % 2 == 0 else x

    f = fl.jit(pairs, dynamic=0, backend="aot_eager")
    for rows in (4, 8, 5, 6, 5, 7):
        torch.testing.assert_close(f(torch.arange(rows)), pairs(torch.arange(rows)))
    assert f.traces == 3  # even, 5, 7


def test_a_size_made_a_number_is_refused():
    with pytest.raises(TraceError, match="stays a symbol"):
        fl.jit(lambda x: x.view(4, 2), dynamic=0, backend="aot_eager")(torch.ones(8))


def test_leaves_of_different_lengths_are_refused():
    f = fl.jit(lambda batch: batch[0].sum() + batch[1].sum(), dynamic=0, backend="aot_eager")
    with pytest.raises(ShapeError, match="'0/1': 3"):
        f((torch.ones(2), torch.ones(3)))
    f((torch.ones(2), torch.tensor(1.0)))  # a 0-d leaf has no leading dimension
    f((torch.ones(5), torch.tensor(1.0)))
    assert f.traces == 1
    with pytest.raises(ShapeError, match="'0/1': 3"):
        f((torch.ones(2), torch.ones(3)))


def test_ahead_of_time(tmp_path):
    f = fl.jit(lambda x: x.exp(), dynamic=0, backend="aot_eager")
    compiled = f.lower(torch.ones(4, 2)).compile()
    for rows in (4, 9):
        torch.testing.assert_close(compiled(torch.ones(rows, 2)), torch.ones(rows, 2).exp())
    with pytest.raises(StructureError, match="shape"):
        compiled(torch.ones(4, 3))
    with pytest.raises(StructureError, match="shape"):
        compiled(torch.ones(1, 2))
    with pytest.raises(CompileError, match="dynamic"):
        compiled.save(tmp_path / "exp.pt2")
