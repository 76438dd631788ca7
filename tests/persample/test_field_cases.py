"""Field cases B21, B27 and B28: one norm per sample; layers and code that vmap cannot run."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call

from funcloop import persample
from funcloop._errors import UnsupportedError
from funcloop.stateless import stateless
from tests.references import per_sample_gradients


def linear_loss(params, buffers, batch, key):
    return batch[:, 0] * params["a"] + batch[:, 1] * params["b"]


ZEROS = {"a": torch.zeros(()), "b": torch.zeros(())}


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
def test_b21_one_norm_per_sample(engine):
    grad_fn = persample.clipped(linear_loss, max_norm=1.0, engine=engine)
    one = grad_fn(ZEROS, {}, torch.tensor([[3.0, 4.0]]), None).grads
    torch.testing.assert_close((one["a"], one["b"]), (torch.tensor(0.6), torch.tensor(0.8)))
    two = grad_fn(ZEROS, {}, torch.tensor([[6.0, 8.0], [0.0, 1.0]]), None).grads
    torch.testing.assert_close((two["a"], two["b"]), (torch.tensor(0.3), torch.tensor(0.9)))


def test_b21_sensitivity_per_layer():
    params = {str(i): torch.zeros(2) for i in range(8)}
    grad_fn = persample.clipped(linear_loss, max_norm=1.0, per_layer=True)
    assert math.isclose(grad_fn.sensitivity(params), 2.8284271, rel_tol=1e-7)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
def test_b27_recurrent_nets_without_stateless(kind, engine):
    net, x = kind(3, 2, batch_first=True), torch.randn(5, 4, 3)
    params = {name: p.detach() for name, p in net.named_parameters()}

    def loss_of_one(params, xi):
        return functional_call(net, params, (xi[None],))[0].sum()

    def loss_fn(params, buffers, batch, key):
        return functional_call(net, params, (batch,))[0].sum((1, 2))

    got = persample.grads(loss_fn, engine=engine)(params, {}, x, None)
    for name, want in per_sample_gradients(loss_of_one, params, x).items():
        torch.testing.assert_close(got[name], want, rtol=1e-5, atol=1e-5)


def test_b27_embedding_bag_takes_no_slow_path():
    net, tokens = nn.EmbeddingBag(7, 3), torch.randint(7, (4, 5))
    model = stateless(net)
    params, _buffers = model.init()

    def loss_fn(params, buffers, batch, key):
        return model.apply(params, buffers, batch, train=True)[0].square().sum(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = persample.grads(loss_fn)(params, {}, tokens, None)["weight"]
    want = per_sample_gradients(
        lambda p, t: functional_call(net, p, (t[None],)).square().sum(), params, tokens
    )
    torch.testing.assert_close(got, want["weight"])


def branch(x):
    return (x * 2 if x.sum() > 0 else x).sum()


def copy_in(x):
    y = torch.zeros(3)
    y.copy_(x)
    return y.sum()


def item(x):
    return x.sum() * (2 if x.sum().item() > 0 else 1)


X = torch.stack([torch.ones(3), -torch.ones(3)])


def of(f):
    """The gradient for `w` at ones is the gradient of f at the example times the example."""
    return lambda params, buffers, batch, key: f(batch[0] * params)[None]


@pytest.mark.parametrize(
    ("f", "want"),
    [
        (branch, [[2.0] * 3, [-1.0] * 3]),
        (copy_in, [[1.0] * 3, [-1.0] * 3]),
        (item, [[2.0] * 3, [-1.0] * 3]),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "ghost", "vmap"])
def test_b28_code_that_vmap_cannot_run(f, want, engine):
    with pytest.raises(UnsupportedError, match='engine="loop"'):
        persample.grads(of(f), engine=engine)(torch.ones(3), {}, X, None)
    got = persample.grads(of(f), engine="loop")(torch.ones(3), {}, X, None)
    torch.testing.assert_close(got, torch.tensor(want))


@pytest.mark.parametrize("reentrant", [False, True])
def test_b28_checkpointing_runs_as_a_plain_call(reentrant):
    class Block(nn.Linear):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=reentrant)

    net = Block(3, 2)
    model = stateless(net)
    params, _ = model.init()

    def loss_fn(params, buffers, batch, key):
        return model.apply(params, buffers, batch, train=True)[0].square().sum(1)

    got = persample.grads(loss_fn)(params, {}, X, None)
    want = per_sample_gradients(
        lambda p, x: nn.functional.linear(x, p["weight"], p["bias"]).square().sum(), params, X
    )
    torch.testing.assert_close(got, want)


def test_b28_checkpointing_outside_of_stateless_is_refused():
    def loss_fn(params, buffers, batch, key):
        f = lambda x: (x * params).square()  # noqa: E731
        return torch.utils.checkpoint.checkpoint(f, batch, use_reentrant=False).sum(1)

    with pytest.raises(UnsupportedError, match="saved-tensor hooks"):
        persample.grads(loss_fn)(torch.ones(3), {}, X, None)
