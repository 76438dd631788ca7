"""`explain`, `check_independence` and user rules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from funcloop import persample, random
from funcloop._errors import ShapeError, UnsupportedError
from funcloop.persample._use import _RULES
from funcloop.stateless import stateless
from tests.cases import ConvNet, Tied


def loss_of(net, train=True):
    model = stateless(net)
    params, buffers = model.init()

    def loss_fn(params, buffers, batch, key):
        output, _ = model.apply(params, buffers, batch, key=key, train=train)
        return output.flatten(1).square().sum(1)

    return loss_fn, params, buffers


def test_explain_names_engine_function_and_way():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3), nn.LayerNorm(3)
    )
    loss_fn, params, buffers = loss_of(net)
    text = str(persample.explain(loss_fn, params, buffers, torch.randn(2, 1, 4, 4)))
    assert "0.weight (4, 1, 3, 3): ghost, F.conv2d: Gram matrices of 4 positions" in text
    assert "1.weight (4,): autograd, no rule for F.group_norm" in text
    assert "3.weight (3, 16): ghost, F.linear: product of the norms" in text
    assert "4.bias (3,): autograd, no rule for F.layer_norm" in text


def test_explain_of_shared_unused_and_gram():
    loss_fn, params, buffers = loss_of(Tied())
    (line,) = persample.explain(
        loss_fn, params, buffers, torch.zeros(2, 3, dtype=torch.int64)
    ).lines
    assert set(line.functions) == {
        "torch.nn.functional.embedding",
        "torch.nn.functional.linear",
    }
    params = {"w": torch.zeros(400, 300), "unused": torch.zeros(2)}
    explained = persample.explain(
        lambda p, b, x, k: F.linear(x, p["w"]).sum((1, 2)), params, {}, torch.zeros(2, 4, 300)
    )
    assert "Gram matrices of 4 positions" in str(explained)
    assert "unused, zero" in str(explained)


def test_independent_examples_pass():
    loss_fn, params, buffers = loss_of(ConvNet(), train=False)
    persample.check_independence(loss_fn, params, buffers, torch.randn(5, 1, 8, 8))


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x - x.mean(0),
        lambda x: x @ x.T[:, :1],
        lambda x: x.softmax(0),
        lambda x: x + x.flip(0),
        lambda x: x.cumsum(0),
        lambda x: x / x.shape[0],
    ],
)
def test_mixing_is_measured(mix):
    loss_fn = lambda p, b, x, k: (mix(x) * p).square().sum(1)  # noqa: E731
    with pytest.raises(UnsupportedError, match="the loss of example"):
        persample.check_independence(loss_fn, torch.ones(()), {}, torch.randn(6, 3))


def test_an_infinite_loss_hides_no_mixing():
    loss_fn = lambda p, b, x, k: torch.where(x > 9, torch.inf, x - x.mean()) * p  # noqa: E731
    with pytest.raises(UnsupportedError, match="the loss of example"):
        persample.check_independence(loss_fn, torch.ones(()), {}, torch.tensor([1.0, 2, 3, 99]))


def test_batch_norm_is_measured():
    loss_fn, params, buffers = loss_of(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    with pytest.raises(UnsupportedError, match="GroupNorm"):
        persample.check_independence(loss_fn, params, buffers, torch.randn(6, 3), random.key(0))
    with pytest.raises(ShapeError):
        persample.check_independence(lambda p, b, x, k: x.mean(), {}, {}, torch.ones(2))


def test_a_user_rule_is_used_and_right():
    def my_loss(params, buffers, batch, key):
        return torch.tensordot(batch, params["w"], 1).square().sum(1)

    params, x = {"w": torch.randn(3, 2)}, torch.randn(4, 3)
    assert "no rule for tensordot" in str(persample.explain(my_loss, params, {}, x)).replace(
        "torch.functional.", ""
    )
    want = persample.clipped(my_loss, 1.0, engine="loop")(params, {}, x, None)
    try:

        @persample.register_rule(torch.tensordot)
        def tensordot(a, b, dims=2, out=None):
            if dims != 1:
                return {}
            shape = b.shape

            def factor(grad, a):
                return persample.Outer(a.unsqueeze(1), grad.unsqueeze(1), shape)

            return {"b": persample.Use((a,), factor)}

        line = str(persample.explain(my_loss, params, {}, x))
        assert "ghost" in line and "product of the norms" in line  # noqa: PT018
        got = persample.clipped(my_loss, 1.0)(params, {}, x, None)
    finally:
        _RULES.pop(torch.tensordot, None)
    torch.testing.assert_close(got.grads["w"], want.grads["w"])
