"""Fake quantization against exact arithmetic, against torch, and by its laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from funcloop import ops
from funcloop._errors import ArgumentError, ShapeError
from funcloop.ops import QuantSpec, dequantize, fake_quantize, quantize
from funcloop.testing import VALUES, quant_specs, shapes, tensors, variants
from tests.cases import generator
from tests.laws import assert_jit_equal, assert_trees_close, assert_trees_equal
from tests.ops import reference

FAST = settings(max_examples=60)
SCALES = st.floats(2.0**-10, 4.0).map(lambda s: torch.tensor(s))
MODERATE = ("normal", "ties", "bounds", "subnormal", "zero")


def with_grad(f, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = f(x)
    return y.detach(), torch.autograd.grad(y, x, grad)[0]


def zero_points(spec: QuantSpec) -> st.SearchStrategy[int]:
    return st.integers(spec.quant_min, spec.quant_max)


@FAST
@given(tensors(values=MODERATE), SCALES, quant_specs(), st.data())
def test_exact_reference(x: Tensor, scale: Tensor, spec: QuantSpec, data):
    zero_point = data.draw(zero_points(spec))
    value, mask = reference.fake_quantize(x, scale, zero_point, spec)
    got, gradient = with_grad(
        lambda x: fake_quantize(x, scale, zero_point, spec), x, torch.full_like(x, 2)
    )
    assert_trees_equal(got, value)
    assert_trees_equal(gradient, 2 * mask.to(x.dtype))


@FAST
@given(
    tensors(values=tuple(v for v in VALUES if v != "nonfinite")), SCALES, quant_specs(), st.data()
)
def test_torch_per_tensor_bit_for_bit(x: Tensor, scale: Tensor, spec: QuantSpec, data):
    zero_point = data.draw(zero_points(spec))
    grad = torch.randn(x.shape, generator=generator()).to(x.dtype)

    def theirs(x: Tensor) -> Tensor:
        point = torch.tensor(zero_point, dtype=torch.int32)
        return torch.fake_quantize_per_tensor_affine(
            x, scale, point, spec.quant_min, spec.quant_max
        )

    want = with_grad(theirs, x, grad)
    assert_trees_equal(
        with_grad(lambda x: fake_quantize(x, scale, zero_point, spec), x, grad), want
    )


@FAST
@given(
    tensors(shapes(1, 3, 1), [torch.float32, torch.bfloat16, torch.float16], values=MODERATE),
    quant_specs(),
    st.data(),
)
def test_torch_per_channel_bit_for_bit(x: Tensor, spec: QuantSpec, data):
    axis = data.draw(st.integers(0, x.ndim - 1))
    spec = QuantSpec(spec.bits, spec.signed, spec.symmetric, spec.narrow, axis)
    scale = torch.tensor([data.draw(st.floats(2.0**-10, 4.0)) for _ in range(x.shape[axis])])
    points = [data.draw(zero_points(spec)) for _ in range(x.shape[axis])]
    zero_point = torch.tensor(points, dtype=torch.int32)
    grad = torch.randn(x.shape, generator=generator()).to(x.dtype)

    def theirs(x: Tensor) -> Tensor:
        return torch.fake_quantize_per_channel_affine(
            x, scale, zero_point, axis, spec.quant_min, spec.quant_max
        )

    got = with_grad(lambda x: fake_quantize(x, scale, zero_point, spec), x, grad)
    assert_trees_equal(got, with_grad(theirs, x, grad))


@FAST
@given(tensors(shapes(2, 2, 1), [torch.float32], values=MODERATE))
def test_torch_learned_scale(x: Tensor):
    """The gradient by the scale is that of torch's learnable fake quantization."""
    spec = QuantSpec(4, axis=0)
    scale = torch.rand(x.shape[0], generator=generator()) + 0.1
    grad = torch.randn(x.shape, generator=generator(1))
    points = torch.zeros(x.shape[0])
    theirs = scale.clone().requires_grad_()
    want = torch.autograd.grad(
        torch._fake_quantize_learnable_per_channel_affine(x, theirs, points, 0, -8, 7), theirs, grad
    )[0]
    got = torch.func.vjp(lambda s: fake_quantize(x, s, 0, spec), scale)[1](grad)[0]
    # torch multiplies where ours divides: (value - x) / scale is rounded differently
    assert_trees_close(got, want, 1e-4)


@FAST
@given(tensors(values=VALUES), SCALES, quant_specs(), st.data())
def test_codes_lie_in_range(x: Tensor, scale: Tensor, spec: QuantSpec, data):
    zero_point = data.draw(zero_points(spec))
    codes = quantize(x, scale, zero_point, spec)
    assert codes.dtype is (torch.int8 if spec.signed else torch.uint8)
    assert ((codes >= spec.quant_min) & (codes <= spec.quant_max)).all()
    value = fake_quantize(x.float(), scale, zero_point, spec)
    again = dequantize(quantize(x.float(), scale, zero_point, spec), scale, zero_point, spec)
    assert_trees_equal(again, torch.where(x.isnan(), 0, value))


@FAST
@given(
    tensors(dtypes=[torch.float32, torch.float64], values=MODERATE),
    SCALES,
    quant_specs(),
    st.data(),
)
def test_idempotent(x: Tensor, scale: Tensor, spec: QuantSpec, data):
    zero_point = data.draw(zero_points(spec))
    once = fake_quantize(x, scale, zero_point, spec)
    assert_trees_equal(fake_quantize(once, scale, zero_point, spec), once)


@FAST
@given(tensors(shapes(1, 1, 1, 8), values=MODERATE), SCALES, quant_specs(), st.data())
def test_monotone(x: Tensor, scale: Tensor, spec: QuantSpec, data):
    y = fake_quantize(x.sort().values, scale, data.draw(zero_points(spec)), spec)
    assert (y.diff() >= 0).all()


@FAST
@given(tensors(values=MODERATE), SCALES, st.integers(2, 8))
def test_symmetric_where_the_range_is(x: Tensor, scale: Tensor, bits: int):
    spec = QuantSpec(bits, narrow=True)
    assert_trees_equal(fake_quantize(-x, scale, 0, spec), -fake_quantize(x, scale, 0, spec))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_channel_is_per_tensor_looped_and_vmapped(axis: int):
    x = 3 * torch.randn(3, 4, 5, generator=generator())
    spec, one = QuantSpec(4, axis=axis), QuantSpec(4)
    size = x.shape[axis]
    scale = torch.rand(size, generator=generator(1)) + 0.05
    points = torch.arange(size, dtype=torch.int32) - 2
    got = fake_quantize(x, scale, points, spec)
    loop = [fake_quantize(x.select(axis, i), scale[i], points[i], one) for i in range(size)]
    assert_trees_equal(got, torch.stack(loop, axis))
    rows = torch.func.vmap(lambda x, s, z: fake_quantize(x, s, z, one), (axis, 0, 0), axis)
    assert_trees_equal(got, rows(x, scale, points))


@pytest.mark.parametrize(("axis", "shape"), [(None, (3, 2)), (0, (1, 8)), (-1, (3, 2))])
def test_per_group_is_per_tensor_looped(axis: int | None, shape: tuple[int, ...]):
    x = 3 * torch.randn(3, 8, generator=generator())
    size = 3 if axis == 0 else 4
    spec, one = QuantSpec(4, axis=axis, group_size=size), QuantSpec(4)
    assert spec.scale_shape(x.shape) == shape
    scale = torch.rand(shape, generator=generator(1)) + 0.05
    got = fake_quantize(x, scale, 0, spec)
    for row in range(3):
        for column in range(8):
            s = scale[row // size, column] if axis == 0 else scale[row, column // size]
            assert got[row, column] == fake_quantize(x[row, column], s, 0, one)
    assert torch.func.vjp(lambda s: fake_quantize(x, s, 0, spec), scale)[1](got)[0].shape == shape


def test_b20_quantizer_numerics(device: torch.device):
    full, narrow = QuantSpec(8), QuantSpec(8, narrow=True)
    ties = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], device=device)
    assert fake_quantize(ties, 1.0, 0, full).tolist() == [0, 2, 2, 0, -2, -2]

    w = torch.tensor([[0.0, 0.0], [1.27, -0.5]], device=device)
    channels = QuantSpec(8, narrow=True, axis=0)
    observer = ops.min_max(channels)
    scale, zero_point = observer.scale_zero_point(observer.observe(observer.init(w), w))
    value, gradient = with_grad(
        lambda w: fake_quantize(w, scale, zero_point, channels), w, torch.ones_like(w)
    )
    assert_trees_close(value, w, 1e-6)
    assert (value[0] == 0).all()
    assert gradient.isfinite().all()
    assert_trees_close(scale[1], torch.tensor(0.01, device=device), 1e-6)
    tensor = QuantSpec(8, narrow=True)
    rows = torch.func.vmap(lambda w, s: fake_quantize(w, s, 0, tensor))(w, scale)
    assert_trees_equal(value, rows)

    big = torch.tensor([1e38, -1e38, math.inf], device=device)
    small = torch.tensor(1e-7, device=device)
    value, gradient = with_grad(
        lambda x: fake_quantize(x, small, 0, full), big, torch.ones_like(big)
    )
    assert_trees_close(value * 1e5, torch.tensor([1.27, -1.28, 1.27], device=device), 1e-6)
    assert gradient.tolist() == [0, 0, 0]

    sym = torch.tensor([-1.0, 1.0], device=device)
    observer = ops.min_max(narrow)
    scale, _ = observer.scale_zero_point(observer.observe(observer.init(sym), sym))
    assert_trees_equal(fake_quantize(sym, scale, 0, narrow), sym)

    half_way = (torch.arange(-300, 300, device=device) + 0.5) * 0.01
    step = torch.tensor(0.01, device=device)
    codes = quantize(half_way, step, 0, full)
    divided = (half_way / step).round().clamp(-128, 127).to(torch.int8)
    assert (codes != divided).any()  # the reciprocal is what torch multiplies by
    point = torch.tensor(0, dtype=torch.int32, device=device)
    theirs = torch.fake_quantize_per_tensor_affine(half_way, step, point, -128, 127)
    assert_trees_equal(fake_quantize(half_way, step, 0, full), theirs)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-40, -0.0, -math.inf])
def test_a_scale_that_is_not_positive_counts_as_the_smallest(scale: float):
    x = torch.tensor([0.0, 1.0, -1.0])
    spec = QuantSpec(4)
    smallest = torch.finfo(torch.float32).tiny
    value, gradient = with_grad(
        lambda x: fake_quantize(x, torch.tensor(scale), 0, spec), x, torch.ones(3)
    )
    assert_trees_equal(value, torch.tensor([0.0, 7 * smallest, -8 * smallest]))
    assert gradient.tolist() == [1, 0, 0]
    s = torch.tensor(max(scale, -1.0))
    by_scale = torch.func.grad(lambda s: fake_quantize(x, s, 0, spec)[1])(s)
    assert by_scale == 7  # a learned scale finds back


def test_what_is_not_finite():
    spec = QuantSpec(4)
    x = torch.tensor([math.nan, math.inf, -math.inf])
    value, gradient = with_grad(lambda x: fake_quantize(x, 1.0, 0, spec), x, torch.ones(3))
    assert_trees_equal(value, torch.tensor([math.nan, 7.0, -8.0]))
    assert gradient.tolist() == [0, 0, 0]
    assert quantize(x, 1.0, 2, spec).tolist() == [2, 7, -8]
    for scale in (math.nan, math.inf):
        assert fake_quantize(torch.ones(2), torch.tensor(scale), 0, spec).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float32(dtype: torch.dtype):
    x = (5 * torch.randn(100, generator=generator())).to(dtype)
    for scale in (torch.tensor(0.037), torch.tensor(0.037).to(dtype)):
        got = fake_quantize(x, scale, 3, QuantSpec(8))
        want = fake_quantize(x.float(), scale.float(), 3, QuantSpec(8)).to(dtype)
        assert_trees_equal(got, want)


@variants
def test_every_way_to_run_it(variant):
    x = 3 * torch.randn(4, 6, generator=generator()).to(variant.device)
    spec = QuantSpec(4, group_size=3)
    scale = torch.full((4, 2), 0.3, device=variant.device)

    def f(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, pullback = torch.func.vjp(lambda x, s: fake_quantize(x, s, 0, spec), x, scale)
        return value, *pullback(torch.ones_like(value))

    # sums by the scale differ in the order of roundings only
    assert_trees_close(variant(f)(x, scale), f(x, scale))


def test_scale_and_zero_point_are_data():
    spec = QuantSpec(8)
    assert_jit_equal(
        lambda x, s, z: fake_quantize(x, s, z, spec), torch.ones(3), 0.1, torch.tensor(3)
    )


def test_what_is_refused():
    x = torch.ones(3, 4)
    with pytest.raises(ShapeError, match=r"shape \(3,\)"):
        fake_quantize(x, torch.ones(4), 0, QuantSpec(axis=0))
    with pytest.raises(ShapeError, match="groups divide"):
        fake_quantize(x, torch.ones(3, 1), 0, QuantSpec(group_size=3))
    with pytest.raises(ShapeError, match="axis 2"):
        fake_quantize(x, torch.ones(3), 0, QuantSpec(axis=2))
    with pytest.raises(ArgumentError, match="codes are integers"):
        fake_quantize(x, torch.tensor(1.0), torch.tensor(0.5), QuantSpec())
    for arguments in (
        {"bits": 1},
        {"bits": 9},
        {"signed": False, "narrow": True},
        {"group_size": 0},
    ):
        with pytest.raises(ArgumentError):
            QuantSpec(**arguments)
