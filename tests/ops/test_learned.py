"""LSQ, LSQ+, PACT, DoReFa, binary and ternary weights against their papers' formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from funcloop import ops
from funcloop.ops import QuantSpec
from funcloop.testing import shapes, tensors
from tests.cases import generator
from tests.laws import assert_trees_close, assert_trees_equal

FAST = settings(max_examples=30)
NORMAL = tensors(shapes(0, 3, 1), [torch.float64], values=("normal", "ties"))
STEPS = st.floats(0.1, 2.0).map(lambda s: torch.tensor(s, dtype=torch.float64))


def gradients(f, *args: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    value, pullback = torch.func.vjp(f, *args)
    return value, pullback(torch.ones_like(value))


@FAST
@given(NORMAL, STEPS, st.integers(2, 8))
def test_lsq(x: Tensor, step: Tensor, bits: int):
    spec = QuantSpec(bits)
    value, (by_x, by_step) = gradients(lambda x, s: ops.lsq(x, s, spec), x, step)
    v = x * (1 / step)
    code = v.round()
    inside = (code >= spec.quant_min) & (code <= spec.quant_max)
    clamped = code.clamp(spec.quant_min, spec.quant_max)
    assert_trees_equal(value, clamped * step)
    assert_trees_equal(by_x, inside.double())
    slope = torch.where(inside, code - v, clamped)  # equation 3 of the paper
    assert_trees_close(by_step, slope.sum() / math.sqrt(x.numel() * spec.quant_max))


def test_lsq_counts_features_where_asked():
    x, step, spec = torch.ones(8, 4), torch.tensor(0.3), QuantSpec(4)
    whole = torch.func.grad(lambda s: ops.lsq(x, s, spec).sum())(step)
    features = torch.func.grad(lambda s: ops.lsq(x, s, spec, count=4).sum())(step)
    assert_trees_close(features, whole * math.sqrt(8))


@FAST
@given(NORMAL, STEPS, st.floats(-1, 1), st.integers(2, 8))
def test_lsq_plus(x: Tensor, step: Tensor, shift: float, bits: int):
    spec, offset = QuantSpec(bits, signed=False), torch.tensor(shift, dtype=torch.float64)
    value, (by_x, by_step, by_offset) = gradients(
        lambda x, s, b: ops.lsq_plus(x, s, b, spec), x, step, offset
    )
    v = (x - offset) * (1 / step)
    code = v.round()
    inside = (code >= 0) & (code <= spec.quant_max)
    assert_trees_close(value, code.clamp(0, spec.quant_max) * step + offset)
    assert_trees_equal(by_x, inside.double())
    assert_trees_close(by_offset, (~inside).double().sum())
    slope = torch.where(inside, code - v, code.clamp(0, spec.quant_max))
    assert_trees_close(by_step, slope.sum() / math.sqrt(x.numel() * spec.quant_max))


@pytest.mark.parametrize("spec", [QuantSpec(4), QuantSpec(4, axis=0), QuantSpec(4, group_size=2)])
def test_first_step(spec: QuantSpec):
    x = torch.randn(3, 4, generator=generator())
    step = ops.lsq_init(x, spec)
    assert step.shape == spec.scale_shape(x.shape)
    means = {None: x.abs().mean(), 0: x.abs().mean(1)}
    want = x.abs().view(3, 2, 2).mean(2) if spec.group_size else means[spec.axis]
    assert_trees_close(step, 2 * want / math.sqrt(7))
    assert (ops.lsq_init(0 * x, spec) > 0).all()
    assert ops.lsq_init(torch.ones(3), QuantSpec(2, axis=0)).tolist() == [2, 2, 2]


@FAST
@given(NORMAL, st.floats(0.2, 4.0), st.integers(2, 8))
def test_pact(x: Tensor, bound: float, bits: int):
    alpha = torch.tensor(bound, dtype=torch.float64)
    value, (by_x, by_alpha) = gradients(lambda x, a: ops.pact(x, a, bits), x, alpha)
    levels = 2**bits - 1
    scale = alpha / levels
    assert_trees_close(value, (x.clamp(0, bound) * (1 / scale)).round() * scale)
    assert_trees_equal(by_x, ((x >= 0) & (x <= alpha)).double())
    assert_trees_equal(by_alpha, (x > alpha).double().sum())


def test_a_bound_below_zero_finds_back():
    x, alpha = torch.tensor([-1.0, 2.0]), torch.tensor(-0.5)
    value, (_, by_alpha) = gradients(lambda x, a: ops.pact(x, a, 4), x, alpha)
    assert_trees_close(value, torch.zeros(2))
    assert by_alpha == 1


@FAST
@given(NORMAL, st.integers(2, 8))
def test_dorefa(w: Tensor, bits: int):
    value = ops.dorefa(w, bits)
    levels = 2**bits - 1
    squashed = torch.tanh(w)
    largest = squashed.abs().max()
    unit = squashed / (2 * largest) + 0.5 if largest > 0 else torch.full_like(w, 0.5)
    assert_trees_close(value, 2 * (unit * levels).round() / levels - 1)


@FAST
@given(NORMAL)
def test_binarize(w: Tensor):
    value = ops.binarize(w)
    assert_trees_close(value, w.abs().mean() * torch.where(w >= 0, 1.0, -1.0).double())
    if w.ndim:
        rows = ops.binarize(w, axis=0)
        assert_trees_close(rows, torch.stack([ops.binarize(row) for row in w]))


@FAST
@given(NORMAL)
def test_ternarize(w: Tensor):
    value = ops.ternarize(w)
    kept = w.abs() > 0.7 * w.abs().mean()
    mean = w.abs()[kept].mean() if kept.any() else torch.zeros((), dtype=torch.float64)
    assert_trees_close(value, w.sign() * kept * mean)
    assert len(value.abs().unique()) <= 2


def test_weights_of_zero_stay_finite():
    w = torch.zeros(2, 3)
    for f in (ops.binarize, ops.ternarize, lambda w: ops.dorefa(w, 4)):
        value, (gradient,) = gradients(f, w)
        assert value.isfinite().all()
        assert gradient.isfinite().all()
