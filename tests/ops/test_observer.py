"""Observers are pure functions of a state, and find the ranges that NumPy and torch find."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.ao.quantization import MinMaxObserver, MovingAverageMinMaxObserver

from funcloop import ops
from funcloop._errors import ArgumentError
from funcloop.ops import Observer, QuantSpec, fake_quantize
from funcloop.testing import quant_specs, shapes, tensors
from tests.cases import generator
from tests.laws import (
    assert_dtype_preserved,
    assert_jit_equal,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
    assert_vmap_equal,
)

FAST = settings(max_examples=30)
MAKERS = {
    "min_max": ops.min_max,
    "moving_average": lambda spec: ops.moving_average(spec, 0.25),
    "percentile": lambda spec: ops.percentile(spec, 90.0),
    "mse": lambda spec: ops.mse(spec, 8),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed))


def observed(observer: Observer, *xs: Tensor):
    state = observer.init(xs[0])
    for x in xs:
        state = observer.observe(state, x)
    return state


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("spec", [QuantSpec(4), QuantSpec(4, symmetric=False, axis=1)])
def test_laws(name: str, spec: QuantSpec):
    observer = MAKERS[name](spec)
    x, y = normal(3, 4), normal(3, 4, seed=1)
    state = observed(observer, x)
    assert_pure(observer.observe, state, y)
    assert_jit_equal(observer.observe, state, y)
    assert_jit_equal(observer.scale_zero_point, state)
    assert_vmap_equal(observer.observe, (state, x), (state, y))
    assert_dtype_preserved(lambda s: observer.observe(s, y.bfloat16()), state)
    assert_trees_equal(observer.observe(state, x[:0]), state)


@pytest.mark.parametrize("name", MAKERS)
def test_per_channel_is_per_tensor_looped(name: str):
    x, y = normal(3, 4), normal(3, 4, seed=1)
    whole = observed(MAKERS[name](QuantSpec(4, axis=0)), x, y)
    rows = [observed(MAKERS[name](QuantSpec(4)), *pair) for pair in zip(x, y, strict=True)]
    assert_trees_close(whole.low, torch.stack([row.low for row in rows]))
    assert_trees_close(whole.high, torch.stack([row.high for row in rows]))


@FAST
@given(
    st.lists(tensors(shapes(1, 2, 1), [torch.float32], values=("normal",)), min_size=1, max_size=3)
)
def test_torch_ranges(xs: list[Tensor]):
    pairs = [
        (ops.min_max(QuantSpec()), MinMaxObserver()),
        (ops.moving_average(QuantSpec(), 0.25), MovingAverageMinMaxObserver(0.25)),
    ]
    for ours, theirs in pairs:
        for x in xs:
            theirs(x)
        state = observed(ours, *xs)
        assert_trees_close((state.low, state.high), (theirs.min_val, theirs.max_val))


@FAST
@given(tensors(shapes(1, 2, 1), [torch.float64], values=("normal",)), st.floats(50.5, 100))
def test_percentiles_are_numpys(x: Tensor, percent: float):
    state = observed(ops.percentile(QuantSpec(), percent), x)
    want = np.percentile(x.numpy(), [100 - percent, percent])
    assert_trees_close(torch.stack([state.low, state.high]), torch.from_numpy(want), 1e-9)


@FAST
@given(tensors(shapes(1, 2, 1), [torch.float32], values=("normal", "bounds")), quant_specs())
def test_everything_observed_fits(x: Tensor, spec: QuantSpec):
    """Rounded by at most half a step, and zero is a code."""
    observer = ops.min_max(spec)
    scale, zero_point = observer.scale_zero_point(observed(observer, x))
    assert spec.quant_min <= zero_point <= spec.quant_max
    if spec.symmetric:
        assert zero_point == 0
    if spec.symmetric and not spec.signed:
        x = x.clamp_min(0)
    error = (fake_quantize(x, scale, zero_point, spec) - x).abs()
    # an affine range shifts by up to half a step where its zero point is rounded
    steps = 0.5 if spec.symmetric else 1.0
    assert (error <= steps * scale * (1 + 1e-4)).all()
    assert fake_quantize(torch.zeros(1), scale, zero_point, spec) == 0


@pytest.mark.parametrize("narrow", [False, True])
def test_b20_a_symmetric_scale_divides_by_the_largest_code(narrow: bool):
    """Both ends are met exactly, in the full range too: not `2 * amax / 255`."""
    x = torch.tensor([-1.0, 1.0])
    spec = QuantSpec(8, narrow=narrow)
    observer = ops.min_max(spec)
    scale, zero_point = observer.scale_zero_point(observed(observer, x))
    assert_trees_equal(scale, torch.tensor(1 / 127))
    assert_trees_equal(fake_quantize(x, scale, zero_point, spec), x)


def test_mse_is_no_worse_than_the_extremes():
    x = torch.cat([normal(500), torch.tensor([40.0])])
    errors = []
    for make in (ops.mse, ops.min_max):
        observer = make(QuantSpec(4))
        pair = observer.scale_zero_point(observed(observer, x))
        errors.append((fake_quantize(x, *pair, QuantSpec(4)) - x).square().mean())
    assert errors[0] < errors[1]


def test_nan_stays_visible_and_nothing_observed_is_the_smallest_scale():
    for make in MAKERS.values():
        observer = make(QuantSpec(symmetric=False))
        state = observed(observer, torch.tensor([1.0, float("nan")]))
        assert observer.scale_zero_point(state)[0].isnan()
        scale, zero_point = observer.scale_zero_point(observer.init(torch.ones(2)))
        assert (scale, zero_point) == (torch.finfo(torch.float32).eps, -128)


def test_the_widest_range_does_not_overflow():
    observer = ops.min_max(QuantSpec(symmetric=False))
    x = torch.tensor([-3e38, 3e38])
    assert observer.scale_zero_point(observed(observer, x))[0].isfinite()


def test_arguments():
    for make in (
        lambda: ops.moving_average(QuantSpec(), 0.0),
        lambda: ops.percentile(QuantSpec(), 50.0),
        lambda: ops.mse(QuantSpec(), 0),
    ):
        with pytest.raises(ArgumentError):
            make()
