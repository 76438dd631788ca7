"""A scaled loss gives true gradients, and a step that overflows is none: torch's GradScaler."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from funcloop import optim, persample, privacy, random, schedules, tree
from funcloop._errors import ArgumentError, ShapeError, StructureError
from funcloop.compile import jit
from funcloop.estimators import Aux, accumulate, supervised, value_and_grad
from funcloop.precision import Autocast, Policy, dynamic, loss_scaled, mixed, static
from funcloop.stateless import stateless
from funcloop.step import TrainState, train_step
from tests.cases import MLP, ConvNet, classification
from tests.laws import (
    assert_deterministic,
    assert_jit_equal,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
)

KEY = random.key(0)
FP16 = Policy("params=float32,compute=float16,output=float32")
INF = float("inf")


def slope_loss(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
    """A loss whose gradient for example n is row n of the batch; counts its calls."""
    return batch @ params, Aux({"calls": buffers["calls"] + 1})


def start(tx: Any, loss_scale: Any, params: Any = None) -> TrainState:
    params = torch.zeros(2) if params is None else params
    return TrainState.create(params, {"calls": torch.tensor(0)}, tx, key=KEY, loss_scale=loss_scale)


@pytest.mark.parametrize("scale", [1024.0, 1.0, 65536.0])
@pytest.mark.parametrize("parts", [1, 2])
def test_b32_gradients_are_unscaled_before_they_are_clipped(scale: float, parts: int) -> None:
    tx = optim.chain(optim.clip_by_global_norm(1.0), optim.sgd(1.0))
    grad_fn = accumulate(loss_scaled(slope_loss, None, static(scale)), parts)
    step = train_step(grad_fn, tx)
    for true, moved, norm in (([0.3, 0.4], [-0.3, -0.4], 0.5), ([6.0, 8.0], [-0.6, -0.8], 10.0)):
        state, metrics = step(start(tx, grad_fn.loss_scale), torch.tensor([true, true]))  # type: ignore[attr-defined]  # carried over
        assert state.params.tolist() == pytest.approx(moved)
        assert metrics["grad_norm"] == pytest.approx(norm)
        assert metrics["loss"] == 0


def test_b32_and_so_in_float16() -> None:
    tx = optim.chain(optim.clip_by_global_norm(1.0), optim.sgd(1.0))
    grad_fn = loss_scaled(slope_loss, FP16, static(1024.0))
    step = train_step(grad_fn, tx)
    state, metrics = step(start(tx, grad_fn.loss_scale), torch.tensor([[0.3, 0.4]]))
    assert state.params.tolist() == pytest.approx([-0.3, -0.4], rel=1e-3)
    assert metrics["grad_norm"] == pytest.approx(0.5, rel=1e-3)


def test_b32_noise_is_added_to_true_gradients() -> None:
    inner = loss_scaled(slope_loss, None, static(1024.0))
    noised = privacy.noised(
        accumulate(inner, 2), noise_multiplier=0.0, expected_batch_size=2, sensitivity=1.0
    )
    batch, buffers = torch.tensor([[0.3, 0.4], [0.3, 0.4]]), inner.init({"calls": torch.tensor(0)})
    grads = noised(torch.zeros(2), buffers, batch, KEY).grads
    assert grads.tolist() == pytest.approx([0.3, 0.4])


# What overflows: infinities and NaNs in the gradient of a step.
STEPS = [[0.3, 0.4], [INF, 1.0], [1.0, -2.0], [0.5, float("nan")], [3.0, 1.0], [1.0, 1.0]] * 3


def torch_optimizer(name: str, params: list[Tensor]) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(params, lr=0.1)
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_the_trajectory_is_that_of_grad_scaler(name: str, compiled: bool) -> None:
    options = {"growth_factor": 3.0, "backoff_factor": 0.3, "growth_interval": 2}
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, **options)
    param = torch.zeros(2, requires_grad=True)
    rival = torch_optimizer(name, [param])

    tx = optim.adam(0.1) if name == "adam" else optim.sgd(0.1, momentum=0.9)
    grad_fn = loss_scaled(slope_loss, None, dynamic(1000.0, **options))
    step = train_step(grad_fn, tx)
    step = jit(step, backend="aot_eager") if compiled else step
    state, done = start(tx, grad_fn.loss_scale), 0
    for n, row in enumerate(STEPS):
        slopes = torch.tensor([row])
        rival.zero_grad()
        scaler.scale((slopes @ param).mean()).backward()
        scaler.step(rival)
        scaler.update()
        before = state
        state, metrics = step(state, slopes)
        skipped = not bool(slopes.isfinite().all())
        assert_trees_close(state.params, param.detach(), rtol=1e-6)
        assert state.loss_scale.scale == scaler.get_scale()
        assert state.loss_scale.successes == scaler._get_growth_tracker()
        assert metrics["loss_scale"] == before.loss_scale.scale
        assert metrics["skipped"] == skipped
        done += not skipped
        assert (state.step, state.buffers["calls"]) == (n + 1, done)
        if skipped:
            assert_trees_equal(state.params, before.params)
            assert_trees_equal(state.opt_state, before.opt_state)
    assert 0 < done < len(STEPS)


@given(
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.integers(1, 4),
    st.sampled_from([1.0, 1e30, 3e38, 1e-38]),
)
def test_the_scale_is_that_of_grad_scaler(finite: list[bool], interval: int, scale: float) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    ours = dynamic(scale, growth_interval=interval)
    param = torch.zeros(1, requires_grad=True)
    sgd = torch.optim.SGD([param], lr=0.0)
    scaler.scale(param)  # makes its tensors
    for ok in finite:
        param.grad = torch.tensor([0.0 if ok else INF])
        scaler.unscale_(sgd)
        scaler.step(sgd)
        scaler.update()
        ours = ours.adjust(torch.tensor(ok))
        assert ours.scale == scaler.get_scale()
        assert ours.successes == scaler._get_growth_tracker()


def test_schedules_do_not_advance_on_a_skipped_step() -> None:
    tx = optim.sgd(schedules.linear(1.0, 0.0, 4))
    step = train_step(loss_scaled(slope_loss), tx)
    state, rates = start(tx, dynamic()), []
    for row in ([1.0, 1.0], [INF, 1.0], [1.0, 1.0]):
        state, metrics = step(state, torch.tensor([row]))
        rates.append(float(metrics["learning_rate"]))
    assert rates == [1.0, 1.0, 0.75]


def test_overflow_in_one_microbatch_skips_the_whole_step() -> None:
    tx = optim.sgd(1.0)
    step = train_step(accumulate(loss_scaled(slope_loss), 3), tx)
    rows = torch.ones(7, 2)
    rows[4, 0] = INF
    state = start(tx, dynamic(1024.0))
    after, metrics = step(state, rows)
    assert_trees_equal((after.params, after.buffers), (state.params, state.buffers))
    assert (after.step, after.loss_scale.scale, metrics["skipped"]) == (1, 512, 1)
    after, metrics = step(after, torch.ones(7, 2))
    assert after.params.tolist() == [-1.0, -1.0]
    assert (after.buffers["calls"], after.loss_scale.scale, metrics["skipped"]) == (1, 512, 0)


@pytest.mark.parametrize("policy", [FP16, Autocast(torch.float16)])
def test_float16_training_finds_its_scale_and_follows_float32(policy: Any) -> None:
    torch.manual_seed(0)
    model, tx = stateless(MLP(0.0)), optim.sgd(0.5, momentum=0.9)
    batch = classification(16, 4)
    loss_fn = supervised(model, F.cross_entropy)
    state = TrainState.create(*model.init(), tx, key=KEY, loss_scale=dynamic(2.0**40))
    plain = state._replace(loss_scale=())
    step = jit(train_step(accumulate(loss_scaled(loss_fn, policy), 2), tx), backend="aot_eager")
    full_step = train_step(value_and_grad(loss_fn), tx)
    skipped = 0
    for _ in range(60):
        state, metrics = step(state, batch)
        skipped += int(metrics["skipped"])
        if not metrics["skipped"]:
            plain, full = full_step(plain, batch)
    assert 5 < skipped < 40
    assert step.traces == 1
    assert float(full["loss"]) < 0.5
    assert float(metrics["loss"]) == pytest.approx(float(full["loss"]), rel=0.05)


def test_small_gradients_do_not_vanish() -> None:
    def loss_fn(params: Any, buffers: Any, batch: Any, key: Any) -> Tensor:
        return 1e-8 * (batch @ params)

    args = torch.ones(3), {}, torch.ones(2, 3), KEY
    scaled = loss_scaled(loss_fn, FP16, static(65536.0))
    grads = scaled(args[0], scaled.init({}), *args[2:]).grads
    assert grads.tolist() == pytest.approx([1e-8] * 3, rel=1e-2)


def test_laws() -> None:
    torch.manual_seed(0)
    model, tx = stateless(ConvNet()), optim.adam(1e-2)
    grad_fn = loss_scaled(supervised(mixed(model, FP16), F.cross_entropy), scale=dynamic(1024.0))
    state = TrainState.create(*model.init(), tx, key=KEY, loss_scale=grad_fn.loss_scale)
    batch = classification(6, 1, 8, 8, classes=10)
    step = train_step(grad_fn, tx)
    new, metrics = assert_pure(step, state, batch)
    assert tree.structure(new) == tree.structure(state)
    assert [x.dtype for x in tree.leaves(new)] == [x.dtype for x in tree.leaves(state)]
    assert all(value.ndim == 0 for value in metrics.values())
    assert_deterministic(step, state, batch)
    assert_jit_equal(grad_fn, state.params, grad_fn.init(state.buffers), batch, KEY, rtol=0.02)
    assert copy.deepcopy(mixed(model, FP16)).names == model.names
    assert pickle.loads(pickle.dumps(FP16)) == FP16


def test_vmap_over_runs_skips_each_on_its_own() -> None:
    tx = optim.sgd(1.0)
    step = train_step(loss_scaled(slope_loss), tx)
    states = tree.stack([start(tx, dynamic(1024.0)), start(tx, dynamic(8.0))])
    batches = torch.tensor([[[INF, 1.0]], [[1.0, 2.0]]])
    after, metrics = torch.func.vmap(step)(states, batches)
    assert after.params.tolist() == [[0.0, 0.0], [-1.0, -2.0]]
    assert after.loss_scale.scale.tolist() == [512.0, 8.0]
    assert metrics["skipped"].tolist() == [1.0, 0.0]


def test_a_static_scale_stays() -> None:
    tx = optim.sgd(1.0)
    step = train_step(loss_scaled(slope_loss), tx)
    state, metrics = step(start(tx, static(8.0)), torch.tensor([[INF, 1.0]]))
    assert (state.params.tolist(), state.loss_scale.scale) == ([0.0, 0.0], 8)
    assert metrics["skipped"] == 1


def test_what_would_be_wrong_is_refused() -> None:
    tx = optim.sgd(1.0)
    grad_fn = loss_scaled(slope_loss, FP16)
    batch = torch.ones(1, 2)
    with pytest.raises(StructureError, match=r"part of the state.*loss_scale=grad_fn.loss_scale"):
        train_step(grad_fn, tx)(start(tx, ()), batch)
    plain = value_and_grad(lambda p, b, x, k: (x @ p, Aux({"calls": torch.tensor(0)})))
    with pytest.raises(StructureError, match=r"precision.loss_scaled, or leave loss_scale out"):
        train_step(plain, tx)(start(tx, dynamic()), batch)
    model = stateless(MLP())
    unaware = value_and_grad(supervised(model, F.cross_entropy))
    state = TrainState.create(*model.init(), tx, key=KEY, loss_scale=dynamic())
    with pytest.raises(StructureError, match=r"buffers a Scaled.*such as a loss scale"):
        train_step(unaware, tx)(state, classification(4, 4))
    with pytest.raises(ShapeError, match=r"params is float16.*params=float32"):
        grad_fn(torch.zeros(2).half(), grad_fn.init({}), batch, KEY)
    buffers = grad_fn.init({"calls": torch.tensor(0)})
    with pytest.raises(ArgumentError, match=r"an Estimate, which a GradFn returns"):
        persample.clipped(grad_fn, 1.0)(torch.zeros(2), buffers, batch, KEY)
    for options in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"growth_interval": 0}):
        with pytest.raises(ArgumentError, match="factor above one"):
            dynamic(**options)
    for scale in (0.0, -1.0, INF):
        with pytest.raises(ArgumentError, match="positive and finite"):
            static(scale)
