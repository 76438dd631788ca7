"""Which dtype is used where, and that gradients pass through every cast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from funcloop import optim, persample, random, tree
from funcloop._errors import ArgumentError
from funcloop.compile import jit
from funcloop.estimators import Aux, accumulate, remat, supervised, value_and_grad
from funcloop.precision import Autocast, Policy, mixed, mixed_loss
from funcloop.stateless import stateless
from funcloop.step import TrainState, train_step
from tests.cases import MLP, ConvNet, Tied, classification
from tests.laws import (
    assert_deterministic,
    assert_jit_equal,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
)

KEY = random.key(0)
BF16 = Policy("params=float32,compute=bfloat16,output=float32")


class Seen(TorchFunctionMode):
    """Notes the dtypes of the arguments of some functions."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names, self.dtypes = names, set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in self.names:
            self.dtypes |= {x.dtype for x in args if isinstance(x, Tensor)}
        return result


def test_a_policy_is_read_from_text() -> None:
    assert Policy("compute=float16, params=bfloat16").params is torch.bfloat16
    assert Policy("compute=float16").output is torch.float32
    assert Policy("compute=bfloat16") == BF16
    assert eval(repr(BF16), {"Policy": Policy}) == BF16
    assert len({BF16, Policy("compute=bfloat16"), Policy("compute=float16")}) == 2
    for spec in ("", "compute=half", "weights=float32", "params=float32"):
        with pytest.raises(ArgumentError, match="compute="):
            Policy(spec)
    with pytest.raises(ArgumentError, match="bfloat16 or float16"):
        Autocast(torch.float32)


@pytest.mark.parametrize("policy", [BF16, Autocast(torch.bfloat16)])
def test_params_and_buffers_keep_their_dtypes_and_the_output_is_float32(policy: Any) -> None:
    torch.manual_seed(0)
    model = mixed(stateless(ConvNet()), policy)
    params, buffers = model.init()
    x, _ = classification(6, 1, 8, 8)
    with Seen("conv2d", "linear") as seen:
        output, after = model.apply(params, buffers, x, key=KEY, train=True)
    assert output.dtype is torch.float32
    if isinstance(policy, Policy):  # autocast casts below what a function mode can see
        assert seen.dtypes == {torch.bfloat16}
    for before, now in zip(tree.leaves(buffers), tree.leaves(after), strict=True):
        assert before.dtype is now.dtype
    full, _ = stateless(ConvNet()).apply(params, buffers, x, key=KEY, train=True)
    assert not torch.equal(output, full)
    torch.testing.assert_close(output, full, rtol=0.05, atol=0.05)


def test_norms_run_in_float32_with_their_own_weights() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)
            self.batch, self.rms = nn.BatchNorm1d(4), nn.RMSNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.rms(self.batch(self.norm(x)))

    torch.manual_seed(0)
    model = mixed(stateless(Block()), BF16)
    params, buffers = model.init()
    params = tree.map(lambda p: 1.0 + 2**-10 + 0 * p, params)  # is one in bfloat16
    x = torch.randn(16, 4)
    with Seen("layer_norm", "batch_norm", "rms_norm") as seen:
        output, after = model.apply(params, buffers, x, train=True)
    assert seen.dtypes == {torch.float32}
    low = x.bfloat16()
    for f in (
        lambda h: F.layer_norm(h, (4,), params["norm.weight"], params["norm.bias"]),
        lambda h: F.batch_norm(
            h, None, None, params["batch.weight"], params["batch.bias"], training=True
        ),
        lambda h: F.rms_norm(h, (4,), params["rms.weight"]),
    ):
        low = f(low.float()).bfloat16()
    assert_trees_equal(output, low.float())
    assert not torch.equal(after["batch.running_mean"], buffers["batch.running_mean"])
    assert after["batch.running_mean"].dtype is torch.float32


def test_losses_run_in_float32() -> None:
    """Under a policy for the whole loss function too, where its logits are bfloat16."""
    w = torch.randn(4, 3)
    x, y = classification(8, 4)

    def loss_fn(params: Any, buffers: Any, batch: Any, key: Any) -> Tensor:
        return F.cross_entropy(batch[0] @ params, batch[1], reduction="none")

    want = F.cross_entropy((x.bfloat16() @ w.bfloat16()).float(), y, reduction="none")
    assert_trees_equal(mixed_loss(loss_fn, BF16)(w, {}, (x, y), KEY)[0], want)


def test_targets_and_weights_of_a_batch_are_not_rounded() -> None:
    def loss_fn(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
        x, y, weight = batch
        return (x @ params - y).square(), Aux(buffers, {"y": y}, weight)

    batch = torch.zeros(2, 3), torch.tensor([257.0, 1.0]), torch.tensor([513.0, 1.0])
    losses, aux = mixed_loss(loss_fn, BF16)(torch.ones(3), {}, batch, KEY)
    assert losses.tolist() == [257.0**2, 1.0]
    assert aux.weight.tolist() == [513.0, 1.0]
    assert aux.metrics["y"].tolist() == [257.0, 1.0]


def test_frozen_weights_are_cast_where_they_are_used_and_stay() -> None:
    torch.manual_seed(0)
    model = mixed(stateless(MLP(0.0)), BF16)
    params, buffers = model.freeze(*model.init(), "hidden")
    x, y = classification(6, 4)
    estimate = value_and_grad(supervised(model, F.cross_entropy))(params, buffers, (x, y), KEY)
    assert_trees_equal(estimate.buffers, buffers)
    frozen, _ = model.apply(params, buffers, x, train=False)
    thawed, _ = model.apply(*model.thaw(params, buffers, "hidden"), x, train=False)
    assert_trees_equal(thawed, frozen)


@pytest.mark.parametrize("policy", [BF16, Autocast(torch.bfloat16)])
@pytest.mark.parametrize("net", [MLP, ConvNet, Tied])
def test_laws(net: Any, policy: Any) -> None:
    torch.manual_seed(0)
    model = mixed(stateless(net()), policy)
    if net is Tied:
        batch = torch.arange(10).view(2, 5), torch.arange(10).view(2, 5)
        criterion = lambda o, t, reduction: F.cross_entropy(o.mT, t, reduction=reduction)  # noqa: E731
    else:
        shape = (4,) if net is MLP else (1, 8, 8)
        batch, criterion = classification(6, *shape), F.cross_entropy
    grad_fn = value_and_grad(supervised(model, criterion))
    args = *model.init(), batch, KEY
    estimate = assert_pure(grad_fn, *args)
    for leaf in tree.leaves(estimate.grads):
        assert leaf.dtype is torch.float32
        assert leaf.abs().sum() > 0
    assert_deterministic(grad_fn, *args)
    assert_jit_equal(grad_fn, *args, rtol=0.02)


def test_it_is_the_gradient_of_the_cast_function() -> None:
    """Equal, bit for bit, to autograd through casts that are written out."""
    torch.manual_seed(0)
    w, v = torch.randn(4, 8), torch.randn(8)
    x, y = torch.randn(5, 4), torch.randn(5)

    def plain(w: Tensor, v: Tensor) -> Tensor:
        h = torch.tanh(x.bfloat16() @ w.bfloat16())
        return ((h @ v.bfloat16()).float() - y).square().mean()

    def loss_fn(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
        inputs, target = batch
        output = torch.tanh(inputs @ params["w"]) @ params["v"]
        return (output - target).square()

    leaves = [w.clone().requires_grad_(), v.clone().requires_grad_()]
    want = torch.autograd.grad(plain(*leaves), leaves)
    got = value_and_grad(mixed_loss(loss_fn, BF16))({"w": w, "v": v}, {}, (x, y), KEY)
    assert_trees_equal([got.grads["w"], got.grads["v"]], list(want))


def test_autocast_is_the_imperative_one() -> None:
    torch.manual_seed(0)
    net = ConvNet().eval()
    x, y = classification(6, 1, 8, 8, classes=10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(net(x).float(), y)
    loss.backward()
    want = {name: p.grad for name, p in net.named_parameters()}
    model = mixed(stateless(net), Autocast(torch.bfloat16))
    loss_fn = supervised(model, F.cross_entropy, train=False)
    got = value_and_grad(loss_fn)(*model.init(), (x, y), KEY)
    assert_trees_equal(got.grads, want)


@pytest.mark.parametrize("policy", [BF16, Autocast(torch.bfloat16)])
def test_what_the_backward_pass_recomputes_is_cast_alike(policy: Any) -> None:
    w = torch.randn(4, 4)
    x = torch.randn(5, 4)

    def block(w: Tensor, h: Tensor) -> Tensor:
        return F.layer_norm(F.dropout(h @ w, 0.5), (4,))

    def loss_fn(f: Any) -> Any:
        def loss(params: Any, buffers: Any, batch: Any, key: Any) -> Tensor:
            with random.route(key):
                return f(params, f(params, batch)).float().square().sum(1) + F.dropout(batch)[:, 0]

        return mixed_loss(loss, policy)

    args = w, {}, x, KEY
    want = value_and_grad(loss_fn(block))(*args)
    assert_trees_equal(value_and_grad(loss_fn(remat(block)))(*args), want)
    assert_jit_equal(value_and_grad(loss_fn(remat(block))), *args, rtol=0.02)


@pytest.mark.parametrize("policy", [BF16, Autocast(torch.bfloat16)])
def test_per_sample_clipping_is_right_in_low_precision(policy: Any) -> None:
    torch.manual_seed(0)
    model = mixed(stateless(MLP(0.0)), policy)
    loss_fn = supervised(model, F.cross_entropy)
    args = *model.init(), classification(5, 4), KEY
    ghost = persample.clipped(loss_fn, 0.5)(*args)
    naive = persample.clipped(loss_fn, 0.5, engine="loop")(*args)
    assert_trees_close(ghost, naive, rtol=0.02)


def test_b12_small_steps_arrive_with_float32_params() -> None:
    def loss_fn(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
        return params * batch, Aux(buffers, {"seen": params.expand(1)})

    tx = optim.sgd(1e-3)
    state = TrainState.create(torch.ones(()), {}, tx, key=KEY)
    step = train_step(value_and_grad(mixed_loss(loss_fn, BF16)), tx)
    for _ in range(10):
        state, metrics = step(state, torch.ones(1))
    assert state.params.dtype is torch.float32
    assert state.params == pytest.approx(0.99)
    _, metrics = step(state, torch.ones(1))
    assert metrics["seen"] == 0.98828125


@pytest.mark.parametrize("compiled", [False, True])
def test_b12_bfloat16_params_need_a_master_copy(compiled: bool) -> None:
    policy = Policy("params=bfloat16,compute=bfloat16")
    model = mixed(stateless(nn.Linear(1, 1, bias=False)), policy)
    params, buffers = model.init()
    assert params["weight"].dtype is torch.bfloat16
    params = tree.ones_like(params)
    loss_fn = supervised(model, lambda o, t, reduction: o.squeeze(-1))
    for tx, want in ((optim.sgd(1e-3), 1.0), (optim.master_weights(optim.sgd(1e-3)), 0.98828125)):
        state = TrainState.create(params, buffers, tx, key=KEY)
        step = train_step(accumulate(value_and_grad(loss_fn), 2), tx)
        step = jit(step, backend="aot_eager") if compiled else step
        for _ in range(10):
            state, _ = step(state, (torch.ones(3, 1), torch.zeros(3)))
        assert state.params["weight"].dtype is torch.bfloat16
        assert state.params["weight"].item() == want


def test_training_in_bfloat16_follows_float32() -> None:
    torch.manual_seed(0)
    plain, tx = stateless(MLP(0.0)), optim.adamw(3e-2)
    batch = classification(16, 4)
    losses = []
    for model in (plain, mixed(plain, BF16), mixed(plain, Autocast())):
        state = TrainState.create(*model.init(), tx, key=KEY)
        step = train_step(value_and_grad(supervised(model, F.cross_entropy)), tx)
        for _ in range(60):
            state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[0] < 0.5
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=0.05)


def test_an_lstm_and_attention_run() -> None:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 8, batch_first=True)
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(self.rnn(x)[0])[:, -1])

    torch.manual_seed(0)
    plain = stateless(Sequence())
    model = mixed(plain, BF16)
    x, y = torch.randn(2, 5, 4), torch.tensor([0, 2])
    args = *model.init(), (x, y), KEY
    got = value_and_grad(supervised(model, F.cross_entropy))(*args)
    want = value_and_grad(supervised(plain, F.cross_entropy))(*args)
    assert_trees_close(got, want, rtol=0.05)
    low = model.apply(*args[:2], x, key=KEY, train=False)[0]
    torch.testing.assert_close(
        low, plain.apply(*args[:2], x, key=KEY, train=False)[0], rtol=0.05, atol=0.05
    )
