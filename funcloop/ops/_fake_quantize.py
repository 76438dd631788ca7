"""Quantize and dequantize in one differentiable step, with torch's numerics and gradient mask."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop.ops._function import function
from funcloop.ops._spec import QuantSpec
from funcloop.ops._straight_through import ste_round


def fake_quantize(
    x: Tensor, scale: Tensor | float, zero_point: Tensor | int, spec: QuantSpec
) -> Tensor:
    """Round to the nearest of `2^bits` values, and let the gradient pass where none was cut off.

    With `code = round(x * (1 / scale)) + zero_point`, half to even, the value is
    `(clamp(code, quant_min, quant_max) - zero_point) * scale`: bit for bit that of
    `torch.fake_quantize_per_tensor_affine`, and of its per-channel form in float32 and below.

    The gradient reaches x where `code` lies in `[quant_min, quant_max]`, both ends included, as in
    torch. The gradient by the scale is that of learned step sizes: `code - zero_point - x / scale`
    inside, the nearest end minus `zero_point` outside. Second derivatives inside are zero, so the
    Hessian is symmetric.

    What is out of the ordinary:
        a scale below the smallest normal float32 (zero, subnormal, negative) counts as that number:
            x = 0 stays 0 and everything else saturates next to zero; the gradient by the scale
            passes on, so that a learned one finds back;
        an infinite x, or a code beyond every integer, saturates, with gradient zero;
        NaN in x, and an infinite or NaN scale, give NaN;
        float16 and bfloat16 are computed in float32 and cast back; float64 x is multiplied by the
            float32 reciprocal of a float32 scale, as in torch.

    Args:
        x: Floating, any shape.
        scale: Above zero, of the shape `spec.scale_shape(x.shape)`.
        zero_point: An int or an integer tensor of the scale's shape, in the range of codes.
        spec: Bits, range, and what shares a scale.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: scale or zero point have another shape.
        ArgumentError: the zero point is floating.

    >>> import torch
    >>> x = torch.tensor([0.5, 1.5, 2.5, 9.0])
    >>> fake_quantize(x, 1.0, 0, QuantSpec(bits=4))
    tensor([0., 2., 2., 7.])
    >>> torch.func.grad(lambda x: fake_quantize(x, 1.0, 0, QuantSpec(bits=4)).sum())(x)
    tensor([1., 1., 1., 0.])
    """
    scale, offset = _aligned(x, scale, zero_point, spec)
    blocks = spec.blocks(x)
    return _fake_quantize(blocks, scale, offset, spec.quant_min, spec.quant_max).reshape(x.shape)


def quantize(x: Tensor, scale: Tensor | float, zero_point: Tensor | int, spec: QuantSpec) -> Tensor:
    """The integer codes of `fake_quantize`, int8 or uint8; not differentiable.

    Args:
        x: Floating, any shape; NaN gives the code of zero.
        scale: As for `fake_quantize`.
        zero_point: As for `fake_quantize`.
        spec: As for `fake_quantize`.

    >>> import torch
    >>> quantize(torch.tensor([-1.0, 0.26, 1.0]), 0.5, 1, QuantSpec(bits=2, signed=False))
    tensor([0, 2, 3], dtype=torch.uint8)
    """
    scale, offset = _aligned(x, scale, zero_point, spec)
    code = torch.round(_steps(spec.blocks(x.detach()), _usable(scale))) + offset
    code = torch.where(code.isnan(), offset, code).clamp(spec.quant_min, spec.quant_max)
    return code.reshape(x.shape).to(torch.int8 if spec.signed else torch.uint8)


def dequantize(
    codes: Tensor, scale: Tensor | float, zero_point: Tensor | int, spec: QuantSpec
) -> Tensor:
    """The values that codes stand for, in the dtype of the scale (at least float32).

    >>> import torch
    >>> codes = quantize(torch.tensor([-1.0, 0.26, 1.0]), 0.5, 1, QuantSpec(bits=2, signed=False))
    >>> dequantize(codes, 0.5, 1, QuantSpec(bits=2, signed=False))
    tensor([-0.5000,  0.5000,  1.0000])
    """
    scale, offset = _aligned(codes, scale, zero_point, spec)
    usable = _usable(scale)
    return ((spec.blocks(codes.to(torch.int32)) - offset).to(usable.dtype) * usable).reshape(
        codes.shape
    )


def quantization_error(x: Tensor, scale: Tensor, zero_point: Tensor, spec: QuantSpec) -> Tensor:
    """The mean squared difference between x and its quantized value, for each scale."""
    return spec.rows(fake_quantize(x, scale, zero_point, spec) - x).square().mean(-1)


def _aligned(
    x: Tensor, scale: Tensor | float, zero_point: Tensor | int, spec: QuantSpec
) -> tuple[Tensor, Tensor]:
    """Scale and zero point as tensors that broadcast against the blocks of x."""
    if not isinstance(scale, Tensor):
        scale = torch.full(spec.scale_shape(x.shape), scale, device=x.device)
    if not isinstance(zero_point, Tensor):
        zero_point = torch.full(scale.shape, zero_point, device=x.device)
    if zero_point.is_floating_point():
        raise ArgumentError(
            "a zero point is a code, and codes are integers",
            f"a zero point of {zero_point.dtype}",
            "round it to int32, or learn an offset with lsq_plus",
        )
    return (
        spec.spread(scale, x.shape),
        spec.spread(zero_point, x.shape, "zero point"),
    )


def _usable(scale: Tensor) -> Tensor:
    """The scale in at least float32, and large enough to have a finite reciprocal."""
    wide = torch.promote_types(scale.dtype, torch.float32)
    return scale.to(wide).clamp_min(torch.finfo(torch.float32).tiny)


def _steps(x: Tensor, scale: Tensor) -> Tensor:
    """How many steps x is away from zero."""
    return x.to(torch.promote_types(x.dtype, scale.dtype)) * (1 / scale)


def _forward(
    x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int
) -> Tensor:
    usable = _usable(scale)
    code = (torch.round(_steps(x, usable)) + zero_point).clamp(quant_min, quant_max)
    return ((code - zero_point).to(usable.dtype) * usable).to(x.dtype)


def _backward(
    grad: Tensor,
    _: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor | None, ...]:
    usable = _usable(scale)
    steps = _steps(x, usable)
    # a rounded code varies with x and scale as its surrogate does: symmetric second derivatives
    code = ste_round(steps) + zero_point
    inside = (code >= quant_min) & (code <= quant_max)
    slope = code.clamp(quant_min, quant_max) - zero_point - torch.where(inside, steps, 0)
    by_scale = (grad.to(code.dtype) * slope).sum_to_size(scale.shape)
    return torch.where(inside, grad, 0), by_scale, None, None, None


_fake_quantize = function(_forward, _backward)
