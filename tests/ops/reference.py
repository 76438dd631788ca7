"""Fake quantization in exact arithmetic, element by element."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from funcloop.ops import QuantSpec


def wide(x: Tensor, scale: Tensor) -> np.dtype:
    return np.result_type(
        *[np.float64 if t.dtype is torch.float64 else np.float32 for t in (x, scale)]
    )


def code(x: float, reciprocal: float, zero_point: int, dtype: np.dtype) -> int:
    """The code before it is clamped, as an exact integer."""
    product = dtype.type(Fraction(x) * Fraction(reciprocal))  # one rounding, to the wide dtype
    return round(Fraction(float(product))) + zero_point  # Python rounds half to even


def fake_quantize(
    x: Tensor, scale: Tensor, zero_point: int, spec: QuantSpec
) -> tuple[Tensor, Tensor]:
    """Value and gradient mask for finite x of moderate size and one normal scale."""
    dtype, of_scale = (
        wide(x, scale),
        np.dtype(np.float64 if scale.dtype is torch.float64 else np.float32),
    )
    s = of_scale.type(scale.item())
    reciprocal = float(of_scale.type(1) / s)
    values, masks = [], []
    for element in x.double().flatten().tolist():
        q = code(element, reciprocal, zero_point, dtype)
        masks.append(spec.quant_min <= q <= spec.quant_max)
        clamped = min(max(q, spec.quant_min), spec.quant_max)
        values.append(float(of_scale.type(Fraction(clamped - zero_point) * Fraction(float(s)))))
    value = torch.tensor(values, dtype=torch.float64).reshape(x.shape).to(x.dtype)
    return value, torch.tensor(masks).reshape(x.shape)
