"""Two engines, one law: ghost equals vmap equals a loop of torch.autograd.grad."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from funcloop import persample, random
from funcloop.estimators import Aux
from funcloop.stateless import stateless
from tests.laws import assert_trees_close
from tests.persample import layers
from tests.references import per_sample_gradients

QUICK = settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def check(case: layers.Case, size: int = 3) -> None:
    """Rows, norms and weighted sums of all engines, against autograd example by example."""
    torch.manual_seed(0)
    net = case.net.double()
    model = stateless(net)
    params, buffers = model.init()
    batch = case.batch(size)

    def loss_fn(params, buffers, batch, key):
        output, buffers = model.apply(params, buffers, batch, key=key, train=True)
        return layers.losses(output), Aux(buffers)

    def loss_of_one(params, example):
        return layers.losses(functional_call(net, {**params, **buffers}, (example[None],)))[0]

    want = per_sample_gradients(loss_of_one, params, batch)
    squares = torch.stack([g.reshape(size, -1).square().sum(1) for g in want.values()])
    coefficients = torch.linspace(-1, 2, size, dtype=torch.float64)
    summed = {k: torch.einsum("b,b...->...", coefficients, g) for k, g in want.items()}
    for engine in ("auto", "vmap", "loop"):
        got = persample.grads(loss_fn, engine=engine)(params, buffers, batch, random.key(0))
        assert_trees_close(got, want, 1e-10)
        norms = persample.norms(loss_fn, engine=engine)(params, buffers, batch, random.key(0))
        torch.testing.assert_close(norms, squares.sum(0).sqrt(), rtol=1e-10, atol=1e-10)
        layer_norms = persample.norms(loss_fn, engine=engine, per_layer=True)
        got = layer_norms(params, buffers, batch, random.key(0))
        torch.testing.assert_close(
            torch.stack(list(got.values())).square(), squares, rtol=1e-10, atol=1e-10
        )
        weighted = persample.weighted(loss_fn, engine=engine)
        got = weighted(params, buffers, batch, random.key(0), coefficients)
        assert_trees_close(got, summed, 1e-10)


@given(layers.linears())
@QUICK
def test_linear(case: layers.Case):
    check(case)


@given(layers.convolutions())
@settings(QUICK, max_examples=25)
def test_convolution(case: layers.Case):
    check(case, 2)


@given(layers.embeddings())
@QUICK
def test_embedding(case: layers.Case):
    check(case)


@given(layers.bags())
@settings(QUICK, max_examples=6)
def test_embedding_bag(case: layers.Case):
    check(case)


@given(layers.norms())
@QUICK
def test_norms(case: layers.Case):
    check(case)


@given(layers.attentions)
@QUICK
def test_multi_head_attention(case: layers.Case):
    check(case)


@pytest.mark.parametrize("way", layers.WAYS)
def test_shared_and_computed(way: str):
    check(layers.Case(layers.Shared(way), (3,), tokens=True))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent(kind):
    check(layers.recurrent(kind), 2)


def test_batch_dimension_in_the_middle():
    """A sequence-first transformer: the example is dimension 1 inside the net."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)

        def forward(self, x):
            return self.layer(x.transpose(0, 1)).transpose(0, 1)

    check(layers.Case(Encoder(), (3, 4)))


def test_parametrized_weight():
    net = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no batching rule for its fused weight norm
        check(layers.Case(net, (3,)))


def test_cast_weight():
    """As under a bf16 policy: the layers see a cast of the parameter."""
    net, x = nn.Linear(6, 3), torch.randn(4, 6)
    params = dict(net.named_parameters())

    def loss_fn(params, buffers, batch, key):
        w, b = params["weight"].bfloat16(), params["bias"].bfloat16()
        return layers.losses(nn.functional.linear(batch.bfloat16(), w, b).float())

    explained = persample.explain(loss_fn, params, {}, x)
    assert [line.engine for line in explained.lines] == ["ghost", "ghost"]
    rows = persample.grads(loss_fn, engine="loop")(params, {}, x, None)
    assert rows["weight"].dtype is torch.float32
    squares = sum(r.flatten(1).square().sum(1) for r in rows.values())
    norms = persample.norms(loss_fn)(params, {}, x, None)
    torch.testing.assert_close(norms, squares.sqrt(), rtol=1e-2, atol=1e-2)


def test_constants_that_look_alike_in_print_are_told_apart():
    """NumPy prints the ends of a large array; the middle decides here."""
    forward, other = np.arange(2000), np.arange(2000)
    other[500:1500] = other[500:1500][::-1]
    params, x = {"w": torch.randn(2000, 2)}, torch.randn(3, 2)

    def loss_fn(params, buffers, batch, key):
        a, b = (F.linear(batch, params["w"][index]) for index in (forward, other))
        return a.square().sum(1) + (b * torch.arange(2000)).sum(1)

    got, want = (
        persample.grads(loss_fn, engine=e)(params, {}, x, None)["w"] for e in ("auto", "vmap")
    )
    torch.testing.assert_close(got, want)


def test_autocast():
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )
    model, x = stateless(net), torch.randn(4, 2, 4, 4)
    params, _ = model.init()

    def loss_fn(params, buffers, batch, key):
        with torch.autocast("cpu", torch.bfloat16):
            output, _ = model.apply(params, buffers, batch, train=True)
        return layers.losses(output.float())

    want = persample.grads(loss_fn, engine="loop")(params, {}, x, None)
    for engine in ("auto", "vmap"):
        got = persample.grads(loss_fn, engine=engine)(params, {}, x, None)
        for name, rows in want.items():
            assert got[name].dtype is torch.float32
            assert (got[name] - rows).norm() < 2e-2 * rows.norm(), name


def test_custom_function():
    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad * ctx.saved_tensors[0]  # not the derivative: it has to be this one

    class Net(nn.Linear):
        def forward(self, x):
            return nn.functional.linear(Cube.apply(x), Cube.apply(self.weight), self.bias)

    check(layers.Case(Net(3, 2), (3,)))


class Inside(nn.Linear):
    """Uses its weight inside a transform of its own, as physics-informed losses do."""

    def __init__(self, transform):
        super().__init__(3, 3)
        self.transform = transform

    def forward(self, x):
        f = lambda z: nn.functional.linear(z, self.weight.t(), self.bias).tanh()  # noqa: E731
        if self.transform == "vmap":
            return torch.vmap(f)(x)
        if self.transform == "jvp":
            return torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]
        return torch.func.grad(lambda z: f(z).sum())(x) + f(x)


@pytest.mark.parametrize("transform", ["vmap", "jvp", "grad"])
def test_transforms_inside_of_the_loss(transform):
    check(layers.Case(Inside(transform), (3,)))


def test_positions_that_no_example_has_a_say_in():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.place = nn.Embedding(11, 4), nn.Embedding(3, 4)
            self.register_buffer("order", torch.arange(3))

        def forward(self, tokens):
            return torch.tanh(self.token(tokens) + self.place(self.order))

    check(layers.Case(Positions(), (3,), tokens=True))


def test_complex_parameters():
    w = torch.randn(3, 3, dtype=torch.complex128)
    x = torch.randn(4, 3, dtype=torch.complex128)

    def loss_fn(params, buffers, batch, key):
        return nn.functional.linear(batch, params["w"]).abs().square().sum(1)

    want = per_sample_gradients(lambda p, e: loss_fn(p, {}, e[None], None)[0], {"w": w}, x)
    assert_trees_close(persample.grads(loss_fn)({"w": w}, {}, x, None), want, 1e-10)
    norms = persample.norms(loss_fn)({"w": w}, {}, x, None)
    torch.testing.assert_close(norms, want["w"].abs().square().sum((1, 2)).sqrt())


def test_an_unused_and_a_scalar_parameter():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(2))

        def forward(self, x):
            return x * self.used

    check(layers.Case(Net(), (3,)))


@given(st.sampled_from([torch.float16, torch.bfloat16]), st.sampled_from([1e-3, 1.0, 60.0]))
@QUICK
def test_half_precision_norms_neither_overflow_nor_vanish(dtype, scale):
    x = torch.full((2, 300), scale, dtype=dtype)
    params = {"w": torch.zeros(4, 300, dtype=dtype)}

    def loss_fn(params, buffers, batch, key):
        return nn.functional.linear(batch, params["w"]).sum(1)

    norms = persample.norms(loss_fn)(params, {}, x, None)
    assert norms.dtype is torch.float32
    want = x.double().norm(dim=1) * 2
    torch.testing.assert_close(norms.double(), want, rtol=1e-3, atol=0)
    estimate = persample.clipped(loss_fn, 1.0)(params, {}, x, None)
    assert estimate.grads["w"].dtype is dtype
    torch.testing.assert_close(
        estimate.grads["w"].double().norm(), want[0].clamp(max=1), rtol=2e-2, atol=0
    )
