"""A quantized model is a model: pure, trainable, jitted, and nothing but its parts is rounded."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import funcloop as fl
from funcloop import ops, random
from funcloop._errors import ArgumentError, StructureError, UnsupportedError
from funcloop.ops import QuantSpec, quantized
from funcloop.ops._tap import tapped
from tests.cases import MLP, ConvNet, Tied, classification, generator
from tests.laws import (
    assert_jit_equal,
    assert_module_unchanged,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
    assert_vmap_equal,
    module_state,
)

W, A = QuantSpec(4, narrow=True), QuantSpec(4, signed=False)


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(n: int = 6) -> Tensor:
    return torch.randn(n, 4, generator=generator())


def test_by_hand():
    """Exactly what one would write with `lsq` between the layers."""
    model = fl.stateless(net())
    qmodel = quantized(model, W, A)
    x = batch()
    params, buffers = qmodel.calibrate(*model.init(), x)
    assert list(params)[-3:] == ["0.weight.scale", "2.weight.scale", "1.output.scale"]

    def by_hand(p: dict[str, Tensor], x: Tensor) -> Tensor:
        w0 = ops.lsq(p["0.weight"], p["0.weight.scale"], W)
        w2 = ops.lsq(p["2.weight"], p["2.weight.scale"], W)
        hidden = ops.lsq(F.relu(F.linear(x, w0, p["0.bias"])), p["1.output.scale"], A, count=8)
        return F.linear(hidden, w2, p["2.bias"])

    def run(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return qmodel.apply(p, buffers, x, train=True)[0]

    assert_trees_equal(run(params, x), by_hand(params, x))
    got, want = (
        torch.func.grad(lambda p, f=f: f(p, x).square().sum())(params) for f in (run, by_hand)
    )
    assert_trees_close(got, want)
    assert all(got[name].abs() > 0 for name in ("0.weight.scale", "1.output.scale"))


def test_pure_jit_vmap_and_the_module_untouched():
    module = net()
    before = module_state(module)
    qmodel = quantized(fl.stateless(module), W, A)
    x, y = batch(), batch() + 1
    params, buffers = qmodel.calibrate(*qmodel.init(), x)

    def run(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return qmodel.apply(params, buffers, x, train=True)[0]

    assert_pure(run, params, x)
    assert_jit_equal(run, params, x)
    assert_vmap_equal(run, (params, x), (params, y))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        run(params, torch.ones(3, 5))
    assert_module_unchanged(module, before)
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_training_moves_scales_and_keeps_frozen_ones():
    qmodel = quantized(
        fl.stateless(ConvNet()), {"conv.weight": W, "head.*": None}, {"norm": QuantSpec(4)}
    )
    x, y = classification(16, 1, 8, 8, classes=10)
    params, buffers = qmodel.calibrate(*qmodel.init(random.key(1)), x, key=random.key(2))
    assert list(params)[-2:] == ["conv.weight.scale", "norm.output.scale"]
    tx = fl.optim.sgd(0.1)

    def steps(params, buffers) -> fl.TrainState:
        state = fl.TrainState.create(params, buffers, tx, key=random.key(0))
        step = fl.train_step(fl.value_and_grad(fl.supervised(qmodel, F.cross_entropy)), tx)
        jitted = fl.jit(step, backend="aot_eager")
        assert_trees_close(jitted(state, (x, y)), step(state, (x, y)), 1e-4)
        return step(step(state, (x, y))[0], (x, y))[0]

    free = steps(params, buffers)
    assert free.params["conv.weight.scale"] != params["conv.weight.scale"]
    assert free.buffers["norm.running_mean"].abs().sum() > 0
    held = steps(*qmodel.freeze(params, buffers, "*.scale"))
    assert_trees_equal(held.buffers["conv.weight.scale"], params["conv.weight.scale"])
    assert "conv.weight.scale" not in held.params
    thawed = qmodel.thaw(held.params, held.buffers, "*.scale")
    assert set(thawed[0]) == set(params)


def test_frozen_weights_are_rounded_and_come_back_as_they_were():
    model = fl.stateless(net())
    qmodel = quantized(model, W)
    params, buffers = qmodel.init()
    frozen = qmodel.freeze(params, buffers, "0")
    assert set(frozen[1]) == {"0.weight", "0.bias", "0.weight.scale"}
    want, _ = qmodel.apply(params, buffers, batch(), train=True)
    got, after = qmodel.apply(*frozen, batch(), train=True)
    assert_trees_equal(got, want)
    assert_trees_equal(after, frozen[1])


def test_offsets_where_the_spec_is_not_symmetric():
    spec = QuantSpec(8, signed=False, symmetric=False)
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU())
    qmodel = quantized(fl.stateless(module), activations=spec)
    x = batch()
    params, buffers = qmodel.calibrate(*qmodel.init(), x, observer=ops.min_max)
    assert params["1.output.offset"] < 0  # GELU is not
    got, _ = qmodel.apply(params, buffers, x, train=False)
    assert (got - module(x)).abs().max() <= params["1.output.scale"]


def test_ties_keys_and_dropout():
    tied = quantized(fl.stateless(Tied()), W)
    assert list(tied.weights) == ["embed.weight"]
    params, buffers = tied.init()
    logits, _ = tied.apply(params, buffers, torch.arange(4)[None], train=True)
    assert logits.shape == (1, 4, 11)
    qmodel = quantized(fl.stateless(MLP()), W)
    params, buffers = qmodel.init()
    outputs = [
        qmodel.apply(params, buffers, batch(), key=random.key(k), train=True)[0] for k in (1, 1, 2)
    ]
    assert_trees_equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_stacked_init():
    qmodel = quantized(fl.stateless(net()), QuantSpec(4, axis=0), A)
    keys = random.split(random.key(0), 3)
    stacked, _ = qmodel.init(keys)
    members = [qmodel.init(key)[0] for key in keys]
    assert_trees_close(stacked, fl.tree.stack(members))


def test_merge_holds_rounded_weights():
    qmodel = quantized(fl.stateless(net()), W)
    params, buffers = qmodel.init()
    merged = qmodel.merge(params, buffers)
    assert len(merged[0].weight.unique()) <= 15
    assert_trees_close(
        merged(batch()).detach(), qmodel.apply(params, buffers, batch(), train=False)[0]
    )
    with pytest.raises(UnsupportedError, match="layer outputs"):
        quantized(fl.stateless(net()), W, A).merge(params, buffers)


def test_other_threads_are_not_tapped():
    """The hooks are global; only calls of the thread that is inside are seen."""
    module, seen = net(), []

    def tap(path: str, output: Tensor) -> Tensor:
        thread = threading.Thread(target=lambda: seen.append(module[1](output)))
        thread.start()
        thread.join()
        seen.append(path)
        return output + 1

    with tapped({"1"}, tap):
        result = module(batch())
    assert seen[1:] == ["1"]  # once, though the thread called the same layer
    assert_trees_equal(seen[0], module[:2](batch()))
    assert_trees_equal(result, module[2](module[:2](batch()) + 1))


def test_what_is_refused():
    model = fl.stateless(net())
    with pytest.raises(StructureError, match=r"'3\.weight' matches none"):
        quantized(model, {"3.weight": W})
    with pytest.raises(StructureError, match="finds something to quantize"):
        quantized(fl.stateless(nn.Linear(2, 2)), activations=A)
    with pytest.raises(ArgumentError, match="one scale"):
        quantized(model, activations=QuantSpec(axis=0))
    qmodel = quantized(model, W, A)
    with pytest.raises(StructureError, match=r"missing \['0.weight.scale'"):
        qmodel.apply(*model.init(), batch(), train=True)
    with pytest.raises(StructureError, match="'nothing' matches none"):
        qmodel.freeze(*qmodel.init(), "nothing")
    lstm = quantized(fl.stateless(nn.Sequential(nn.LSTM(4, 3))), activations={"0": A})
    with pytest.raises(UnsupportedError, match="0 returns tuple"):
        lstm.apply(*lstm.init(), batch(), train=False)
