"""A step is a pure function from state and batch to the next state and its metrics."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from funcloop import tree
from funcloop._errors import ShapeError, StructureError
from funcloop.compile import jit
from funcloop.estimators import Aux, Estimate, supervised, value_and_grad
from funcloop.optim import adamw, chain, clip_by_global_norm, sgd
from funcloop.random import key
from funcloop.schedules import warmup_cosine
from funcloop.stateless import stateless
from funcloop.step import TrainState, eval_step, train_step
from tests.cases import MLP, ConvNet, classification
from tests.laws import assert_deterministic, assert_pure, assert_trees_close, assert_trees_equal


def run(net: nn.Module, batch: Any, *, steps: int, **options: Any) -> tuple[TrainState, list[Any]]:
    """Train `net` on one batch, eagerly or with jit options; its module is never changed."""
    model = stateless(net)
    tx = chain(clip_by_global_norm(1.0), adamw(warmup_cosine(1e-2, steps // 10, steps)))
    step = train_step(value_and_grad(supervised(model, F.cross_entropy)), tx)
    state = TrainState.create(*model.init(), tx, key=key(0))
    compiled = jit(step, **options) if options else step
    history = []
    for _ in range(steps):
        state, metrics = compiled(state, batch)
        history.append({name: value.clone() for name, value in metrics.items()})
    assert not options or compiled.traces == 1
    return state, history


def test_50_steps_with_dropout_agree_eager_and_jitted() -> None:
    torch.manual_seed(0)
    net, batch = MLP(), classification(16, 4)
    eager, eager_history = run(net, batch, steps=50)
    jitted, jitted_history = run(net, batch, steps=50, donate=0)
    assert_trees_close(jitted.params, eager.params, rtol=1e-4)
    assert_trees_close(jitted_history, eager_history, rtol=1e-4)
    assert eager.step == jitted.step == 50
    losses = [float(m["loss"]) for m in eager_history]
    assert losses[-1] < losses[0]
    assert len(set(losses)) == 50, "dropout differs from step to step"


def test_batch_norm_statistics_travel_in_the_state() -> None:
    torch.manual_seed(0)
    net, batch = ConvNet(), classification(6, 1, 8, 8, classes=10)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    eager, _ = run(net, batch, steps=3)
    jitted, _ = run(net, batch, steps=3, donate=0, backend="aot_eager")
    assert_trees_close(jitted, eager, rtol=1e-4)
    assert eager.buffers["norm.num_batches_tracked"] == 3
    assert not torch.equal(eager.buffers["norm.running_mean"], before["norm.running_mean"])
    assert_trees_equal(dict(net.state_dict()), before)


def linear(weights: Any = None) -> tuple[Any, TrainState]:
    tx = sgd(0.5, momentum=0.9)
    grad_fn = value_and_grad(lambda p, b, x, k: (p["w"] * x, Aux({"n": b["n"] + 1}, {"x": x})))
    state = TrainState.create({"w": torch.tensor(1.0)}, {"n": torch.tensor(0)}, tx, key=key(0))
    return train_step(grad_fn, tx), state


def test_laws() -> None:
    step, state = linear()
    batch = torch.tensor([1.0, 3.0])
    new, metrics = assert_pure(step, state, batch)
    assert_deterministic(step, state, batch)
    assert tree.structure(new) == tree.structure(state)
    assert (new.step, new.params["w"], new.buffers["n"]) == (1, 0.0, 1)
    want = {"loss": 2.0, "weight": 2.0, "grad_norm": 2.0, "learning_rate": 0.5, "x": 2.0}
    assert {name: value.item() for name, value in metrics.items()} == want
    assert all(value.ndim == 0 for value in metrics.values())


def test_the_key_and_the_step_decide_the_randomness() -> None:
    seen: list[Tensor] = []

    def loss_fn(params: Any, buffers: Any, batch: Tensor, key: Tensor) -> Tensor:
        seen.append(key)
        return params["w"] * batch

    tx = sgd(0.1)
    step = train_step(value_and_grad(loss_fn), tx)
    state = TrainState.create({"w": torch.tensor(1.0)}, {}, tx, key=key(0))
    state, _ = step(state, torch.ones(1))
    cut = state
    for start in (state, cut):
        step(step(start, torch.ones(1))[0], torch.ones(1))
    assert len({tuple(k.tolist()) for k in seen}) == 3
    assert torch.equal(seen[1], seen[3])
    assert torch.equal(seen[2], seen[4])


def test_vmap_over_runs_equals_the_loop() -> None:
    step, state = linear()
    members = [state, state._replace(params={"w": torch.tensor(-2.0)}, key=key(1))]
    batch = torch.tensor([1.0, 3.0])
    got = torch.func.vmap(step, (0, None))(tree.stack(members), batch)
    assert_trees_close(got, tree.stack([step(member, batch) for member in members]))


def test_create_copies_so_that_donation_never_reaches_the_caller() -> None:
    w = torch.ones(2)
    tx = sgd(0.1)
    state = TrainState.create({"w": w, "tied": w}, {"b": w}, tx, key=key(0))
    step = jit(
        train_step(value_and_grad(lambda p, b, x, k: (p["w"] * x).sum()), tx),
        donate=0,
        backend="aot_eager",
    )
    step(state, torch.ones(2))
    assert w.tolist() == [1.0, 1.0]


def test_b24_steps_do_not_chain_graphs() -> None:
    net = nn.Linear(4, 1)
    tx = sgd(0.1)
    state = TrainState.create(dict(net.named_parameters()), {}, tx, key=key(0))
    live = state._replace(params=dict(net.named_parameters()))

    def loss_fn(params: Any, buffers: Any, batch: Tensor, key: Tensor) -> Tensor:
        return torch.func.functional_call(net, params, (batch,)).squeeze(-1)

    step = train_step(value_and_grad(loss_fn), tx)
    counts = []
    for n in range(100):
        live, metrics = step(live, torch.ones(1, 4))
        for leaf in tree.leaves((live, metrics)):
            assert leaf.grad_fn is None
        if n in (10, 99):
            gc.collect()
            counts.append(sum(isinstance(o, Tensor) for o in gc.get_objects()))
    assert counts[0] == counts[1]


def test_a_metric_with_a_reserved_name_is_refused() -> None:
    tx = sgd(0.1)
    grad_fn = value_and_grad(lambda p, b, x, k: (p * x, Aux(b, {"loss": x})))
    state = TrainState.create(torch.tensor(1.0), {}, tx, key=key(0))
    with pytest.raises(StructureError, match=r"metrics \['loss'\].*other names"):
        train_step(grad_fn, tx)(state, torch.ones(2))


def test_evaluation_adds_up_over_uneven_batches() -> None:
    torch.manual_seed(0)
    model = stateless(ConvNet())
    x, y = classification(7, 1, 8, 8, classes=10)
    state = TrainState.create(*model.init(), sgd(0.1), key=key(0))
    evaluate = eval_step(supervised(model, F.cross_entropy, train=False))
    whole = assert_pure(evaluate, state, (x, y))
    parts = Estimate.combine(evaluate(state, (x[:2], y[:2])), evaluate(state, (x[2:], y[2:])))
    assert_trees_close(parts, whole, rtol=1e-6)
    assert whole.grads == whole.buffers == ()
    assert whole.weight == 7
    net = model.merge(state.params, state.buffers).eval()
    torch.testing.assert_close(whole.loss, F.cross_entropy(net(x), y).detach())


def test_padding_of_weight_zero_changes_nothing() -> None:
    torch.manual_seed(0)
    model = stateless(nn.Linear(4, 3))
    loss_fn = supervised(model, F.cross_entropy)
    x, y = classification(5, 4)
    params, buffers = model.init()
    plain = value_and_grad(loss_fn)(params, buffers, (x, y), key(0))
    padded = torch.cat([x, torch.zeros(3, 4)]), F.pad(y, (0, 3)), F.pad(torch.ones(5), (0, 3))
    assert_trees_close(value_and_grad(loss_fn)(params, buffers, padded, key(0)), plain)


def test_a_0d_loss_is_refused_in_evaluation() -> None:
    state = TrainState.create({}, {}, sgd(0.1), key=key(0))
    with pytest.raises(ShapeError, match=r'evaluation step needs one loss.*reduction="none"'):
        eval_step(lambda p, b, x, k: x.sum())(state, torch.ones(2))


def test_supervised_averages_tokens_and_refuses_an_average() -> None:
    model = stateless(nn.Identity())
    target = torch.zeros(2, 5, 3)
    losses, aux = supervised(model, F.mse_loss)({}, {}, (torch.ones(2, 5, 3), target), key(0))
    assert losses.tolist() == [1.0, 1.0]
    assert aux.metrics == {}
    with pytest.raises(ShapeError, match="0-d loss for a target"):
        supervised(model, lambda o, t, reduction: (o - t).sum())(
            {}, {}, (torch.ones(2), torch.ones(2)), key(0)
        )
