"""The value is the forward's to the last bit, the derivatives are the surrogate's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from funcloop import ops
from funcloop.testing import VALUES, assert_trees_close, check_grads, tensors
from tests.laws import assert_trees_equal

EVERY = tensors(values=VALUES)
FAST = settings(max_examples=40)


@FAST
@given(EVERY)
def test_values(x: Tensor):
    assert_trees_equal(ops.ste_round(x), torch.round(x))
    assert_trees_equal(ops.ste_floor(x), torch.floor(x))
    assert_trees_equal(ops.ste_clamp(x, -1.0, 2.0), torch.clamp(x, -1.0, 2.0))
    want = torch.where(x.isnan(), x, torch.where(x < 0, -1.0, 1.0).to(x.dtype))
    assert_trees_equal(ops.ste_sign(x), want)


@FAST
@given(EVERY)
def test_gradients_are_one_also_where_the_value_is_not_finite(x: Tensor):
    for f in (ops.ste_round, ops.ste_floor, lambda x: ops.ste_clamp(x, -1.0, 2.0)):
        (gradient,) = torch.func.vjp(f, x)[1](torch.ones_like(x))
        assert_trees_equal(gradient, torch.ones_like(x))


@FAST
@given(tensors(values=("normal", "bounds", "zero"), dtypes=[torch.float64]))
def test_slopes_of_the_sign(x: Tensor):
    inside = (x.abs() <= 1).double()
    slopes = {
        ops.hardtanh_sign: inside,
        ops.identity_sign: torch.ones_like(x),
        ops.polynomial_sign: inside * (2 - 2 * x.abs()),
        ops.tanh_sign(3.0): 3 * (1 - torch.tanh(3 * x) ** 2),
    }
    for surrogate, slope in slopes.items():
        gradient = torch.func.vjp(lambda x, s=surrogate: ops.ste_sign(x, s), x)[1](
            torch.ones_like(x)
        )
        assert_trees_close(gradient, (slope,), 1e-12)


def test_a_slope_is_positive():
    with pytest.raises(ValueError, match="slope=0"):
        ops.tanh_sign(0)


def test_b20_value_is_not_lost_to_rounding():
    f = ops.straight_through(lambda x: torch.full_like(x, 7.0), lambda x: x)
    x = torch.tensor(1e8)
    assert f(x) == 7
    assert x + (7.0 - x) == 8  # the usual form, in float32


def test_any_forward_and_surrogate():
    f = ops.straight_through(
        lambda tree, n: {"hard": (tree["a"] > tree["b"]).double() * n},
        lambda tree, n: {"hard": torch.sigmoid(tree["a"] - tree["b"]) * n},
    )
    args = ({"a": torch.tensor([0.1, 2.0]), "b": torch.tensor([0.3, -1.0])}, 3)
    assert f(*args)["hard"].tolist() == [0.0, 3.0]
    check_grads(
        lambda tree: f(tree, 3),
        args[:1],
        lambda tree: {"hard": torch.sigmoid(tree["a"] - tree["b"]) * 3},
    )
