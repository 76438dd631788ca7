"""The formulas behind the routed functions are torch's."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError
from funcloop.random import dropout, fold_in, key, route

FIRST = fold_in(key(0), 0)
NORMAL = torch.randn(64, 32, 50, generator=torch.Generator().manual_seed(0))


def routed(f, *args, **kwargs):
    with route(key(0)):
        return f(*args, **kwargs)


def inputs(*shape: int) -> Tensor:
    return torch.linspace(-2, 2, math.prod(shape), dtype=torch.float64).reshape(shape).sin()


def naive_attention(q, k, v, allowed, bias, p, scale):
    """Query by query; a query that may look at nothing gets nothing."""
    weights = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=q.dtype)
    for at in torch.cartesian_prod(*[torch.arange(n) for n in q.shape[:-1]]).tolist():
        *batch, row = at
        seen = allowed[row].nonzero().flatten()
        if len(seen):
            scores = k[tuple(batch)][seen] @ q[tuple(at)] * scale + bias[row][seen]
            weights[tuple(at)][seen] = scores.softmax(0)
    return dropout(FIRST, weights, p) @ v


BLIND = torch.tensor([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]).bool()


@pytest.mark.parametrize(
    ("options", "allowed", "bias"),
    [
        ({}, torch.ones(3, 5).bool(), torch.zeros(3, 5)),
        ({"scale": 0.3}, torch.ones(3, 5).bool(), torch.zeros(3, 5)),
        ({"is_causal": True}, torch.ones(3, 5).tril().bool(), torch.zeros(3, 5)),
        ({"attn_mask": BLIND}, BLIND, torch.zeros(3, 5)),
        ({"attn_mask": inputs(3, 5)}, torch.ones(3, 5).bool(), inputs(3, 5)),
    ],
)
def test_attention(options, allowed, bias, device):
    q, k, v = inputs(2, 2, 3, 4), inputs(2, 2, 5, 4).cos(), inputs(2, 2, 5, 6)
    there = tree.map(lambda x: x.to(device), (q, k, v))
    masks = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in options.items()}
    got = routed(F.scaled_dot_product_attention, *there, dropout_p=0.4, **masks).cpu()
    want = naive_attention(q, k, v, allowed, bias, 0.4, options.get("scale", 0.5))
    torch.testing.assert_close(got, want)
    still = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(
        naive_attention(q, k, v, allowed, bias, 0.0, options.get("scale", 0.5)), still
    )


def test_attention_of_grouped_queries():
    q, k = inputs(1, 6, 3, 4), inputs(1, 2, 3, 4)
    got = routed(F.scaled_dot_product_attention, q, k, k, dropout_p=0.4, enable_gqa=True)
    wide = k.repeat_interleave(3, 1)
    torch.testing.assert_close(
        got, routed(F.scaled_dot_product_attention, q, wide, wide, dropout_p=0.4)
    )


@pytest.mark.parametrize("f", [F.alpha_dropout, F.feature_alpha_dropout])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_alpha_dropout_keeps_mean_and_variance(f, p):
    got = routed(f, NORMAL, p, training=True)
    draws = NORMAL.numel() if f is F.alpha_dropout else NORMAL.shape[0] * NORMAL.shape[1]
    assert got.mean().abs() < 6 / draws**0.5
    assert (got.var() - 1).abs() < 12 / draws**0.5
    # Two values tell what torch does with a dropped and with a kept element.
    with torch.random.fork_rng():
        want = f(torch.ones(64, 32, 5), p, training=True).unique()
    torch.testing.assert_close(routed(f, torch.ones(64, 32, 5), p, training=True).unique(), want)


@pytest.mark.parametrize("f", [F.dropout1d, torch.feature_dropout, F.feature_alpha_dropout])
def test_whole_channels_are_dropped(f):
    got = routed(f, torch.ones(64, 32, 50), 0.3, True)
    assert (got == got[..., :1]).all()
    kept = (got[..., 0] == got.max()).double().mean()
    assert abs(kept - 0.7) < 5 * (0.21 / 2048) ** 0.5


def test_feature_dropout_needs_channels():
    with pytest.raises(ArgumentError, match=r"shape \(5,\)"):
        routed(torch.feature_dropout, torch.ones(5), 0.5, True)


def test_rrelu():
    x = torch.cat([torch.full((5000,), -1.0), torch.tensor([0.0, 2.0])]).requires_grad_()
    got = routed(F.rrelu, x, 0.2, 0.6, training=True)
    assert torch.equal(got[-2:], x[-2:])
    slopes = -got[:-2]
    assert slopes.min() >= 0.2
    assert slopes.max() < 0.6
    assert abs(slopes.mean() - 0.4) < 0.01
    gradient = torch.autograd.grad(got.sum(), x)[0]
    torch.testing.assert_close(gradient[:-2], slopes)


def test_gumbel_softmax_is_hard_and_differentiable():
    x = torch.zeros(2000, 3, requires_grad=True)
    got = routed(F.gumbel_softmax, x, hard=True)
    assert (got.detach().round().sum(-1) == 1).all()
    assert (got.mean(0) - 1 / 3).abs().max() < 0.05
    assert torch.autograd.grad(got[:, 0].sum(), x)[0].abs().sum() > 0


def test_native_dropout_returns_the_kept():
    value, kept = routed(torch.native_dropout, torch.ones(1000), 0.3, True)
    assert kept.dtype is torch.bool
    torch.testing.assert_close(value, kept / 0.7)


def test_in_place_dropout_writes_its_argument():
    x = torch.ones(100)
    got = routed(F.dropout, x, 0.5, inplace=True)
    assert got is x
    assert torch.equal(x, dropout(FIRST, torch.ones(100)))


FILLS = {
    "uniform_": ((-1.0, 3.0), 1.0, 4 / 12**0.5),
    "normal_": ((2.0, 3.0), 2.0, 3.0),
    "log_normal_": ((0.5, 0.25), math.exp(0.53125), 0.43),
    "exponential_": ((4.0,), 0.25, 0.25),
    "geometric_": ((0.25,), 4.0, 12**0.5),
    "bernoulli_": ((0.3,), 0.3, 0.21**0.5),
    "random_": ((10,), 4.5, 99**0.5 / 12**0.5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FILLS)
def test_fills_have_their_moments(name, dtype, device):
    arguments, mean, deviation = FILLS[name]
    x = torch.empty(200, 300, dtype=dtype, device=device).T  # not contiguous
    got = routed(getattr(torch.Tensor, name), x, *arguments)
    assert got is x
    rounding = torch.finfo(dtype).eps * (abs(mean) + deviation)
    assert abs(x.double().mean() - mean) < 5 * deviation / x.numel() ** 0.5 + rounding
    assert abs(x.double().std() - deviation) < 0.05 * deviation + rounding


def test_cauchy_has_its_quartiles():
    x = routed(torch.empty(60_000).cauchy_, 1.0, 2.0)
    torch.testing.assert_close(
        x.quantile(torch.tensor([0.25, 0.5, 0.75])), torch.tensor([-1.0, 1, 3]), atol=0.06, rtol=0
    )


@pytest.mark.parametrize(
    ("dtype", "top"),
    [
        (torch.bool, 1),
        (torch.uint8, 255),
        (torch.int8, 127),
        (torch.int32, 2**31 - 1),
        (torch.int64, 2**63 - 1),
        (torch.float32, 2**24),
        (torch.bfloat16, 2**8),
    ],
)
def test_random_fills_its_dtypes_range(dtype, top, device):
    x = routed(torch.empty(20_000, dtype=dtype, device=device).random_).double()
    assert x.min() >= 0
    assert x.max() <= top
    assert abs(x.mean() / top - 0.5) < 0.02


def test_normal_takes_its_parameters_elementwise():
    mean, std = torch.tensor([0.0, 100.0]), torch.tensor([[1.0], [5.0]])
    got = routed(torch.normal, mean.expand(5000, 2, 2), std.expand(5000, 2, 2))
    torch.testing.assert_close(got.mean(0), mean.expand(2, 2), atol=0.4, rtol=0)
    torch.testing.assert_close(got.std(0), std.expand(2, 2), atol=0, rtol=0.05)


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_never_takes_a_weightless_category(replacement):
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 0.0, 2.0]]).repeat(2000, 1)
    got = routed(torch.multinomial, weights, 2, replacement)
    assert got.shape == (4000, 2)
    assert (weights.gather(1, got) > 0).all()
    if replacement:
        assert abs((got[::2] == 2).double().mean() - 0.75) < 0.04
    else:
        assert (got[:, 0] != got[:, 1]).all()


def test_rand_may_require_grad():
    with route(key(0)):
        assert torch.rand(3, requires_grad=True).is_leaf
        assert torch.randn(3, requires_grad=True).requires_grad
