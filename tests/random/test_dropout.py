"""Keyed dropout: its mask, its scale, its gradient; field case B16."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from funcloop.random import bernoulli, dropout, key, split
from tests.laws import assert_dtype_preserved, assert_jit_equal, assert_trees_close

P = [0.0, 0.25, 0.9, 1.0]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@given(st.floats(0, 1), st.integers(0, 2000), st.integers(0, 2**32))
@settings(max_examples=25)
def test_kept_elements_are_scaled_and_the_others_zero(p, n, seed):
    x = torch.arange(1, n + 1).double()
    got, dropped = dropout(key(seed), x, p), bernoulli(key(seed), p, (n,))
    torch.testing.assert_close(got, torch.where(dropped, 0, x / (1 - p) if p < 1 else 0 * x))


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_gradient_is_the_scaled_mask(p, as_tensor, device):
    x, made = torch.linspace(-2, 2, 500, device=device).double(), key(0).to(device)
    given = torch.tensor(p, dtype=torch.float64, device=device) if as_tensor else p
    gradient = torch.func.grad(lambda x: dropout(made, x, given).sum())(x)
    want = dropout(made, torch.ones_like(x), p)
    torch.testing.assert_close(gradient, want)
    assert gradient.isfinite().all()
    assert (want != 0).double().mean().sub(1 - p).abs() < 0.1


def test_the_gradient_of_the_gradient_and_forward_mode():
    x = torch.linspace(-2, 2, 50).double()
    f = lambda x: dropout(key(0), x.sin(), 0.5)  # noqa: E731
    mask = dropout(key(0), torch.ones_like(x), 0.5)
    second = torch.func.grad(lambda x: torch.func.grad(lambda x: f(x).sum())(x).sum())(x)
    torch.testing.assert_close(second, -x.sin() * mask)
    torch.testing.assert_close(torch.func.jvp(f, (x,), (torch.ones_like(x),))[1], x.cos() * mask)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mask_is_the_same_in_every_dtype_and_on_every_device(dtype, device):
    x, made = torch.ones(3000, dtype=dtype, device=device), key(0).to(device)
    want = dropout(key(0), torch.ones(3000), 0.3) == 0
    got = dropout(made, x, 0.3)
    assert got.dtype is dtype
    assert torch.equal((got == 0).cpu(), want)
    assert torch.equal((dropout(made, x, torch.tensor(0.3, device=device)) == 0).cpu(), want)


def test_dropped_infinities_are_zero(device):
    x = torch.full((100,), float("inf"), device=device)
    got = dropout(key(0).to(device), x, 0.5)
    assert set(got.tolist()) == {0.0, float("inf")}


def test_leaves_of_every_kind(device):
    made = key(0).to(device)
    for x in (torch.tensor(2.0), torch.ones(0, 3), torch.ones(4, 6).T, torch.ones(2, 2).bfloat16()):
        assert_dtype_preserved(lambda x: dropout(made, x, 0.5), x.to(device))
    x = torch.arange(24.0, device=device).reshape(4, 6).T
    assert torch.equal(dropout(made, x, 0.5), dropout(made, x.contiguous(), 0.5))


def test_jitted_gradient():
    x, p = torch.linspace(-1, 1, 2000), torch.tensor([0.0, 0.3, 1.0])
    gradient = torch.func.grad(lambda x, k, p: dropout(k, x.sin(), p).square().sum())
    assert_jit_equal(torch.vmap(gradient, (None, None, 0)), x, key(0), p)
    assert_jit_equal(lambda k, x: gradient(x, k, 0.3), key(0), x)


def test_the_probability_may_be_a_member_of_a_vmap():
    p, keys, x = torch.tensor([0.0, 0.5, 1.0]), split(key(0), 3), torch.ones(1000)
    got = torch.vmap(dropout, in_dims=(0, None, 0))(keys, x, p)
    want = torch.stack([dropout(k, x, q) for k, q in zip(keys, p, strict=True)])
    assert_trees_close(got, want)
    assert torch.equal(got[0], x)
    assert not got[2].any()


def test_b16_dropout_from_a_key():
    x, keys = torch.ones(8, 1000), split(key(0), 8)
    before = torch.get_rng_state()
    f = torch.vmap(lambda k, x: dropout(k, x, 0.5))
    a, again, other = f(keys, x), f(keys, x), f(split(key(1), 8), x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, again)
    assert not torch.equal(a, other)
    assert len(a.unique(dim=0)) == 8
    assert abs((a != 0).float().mean() - 0.5) < 0.05
    assert set(a.unique().tolist()) == {0.0, 2.0}
    chunked = torch.vmap(lambda k, x: dropout(k, x, 0.5), chunk_size=3)(keys, x)
    assert torch.equal(chunked, a)
