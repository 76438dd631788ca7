"""Learned step sizes.

LSQ: Esser et al. (2020), arXiv 1902.08153. LSQ+: Bhalgat et al. (2020), arXiv 2004.09576.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from funcloop.ops._fake_quantize import fake_quantize
from funcloop.ops._gradient import scale_grad
from funcloop.ops._spec import QuantSpec


def lsq(x: Tensor, step: Tensor, spec: QuantSpec, *, count: int | None = None) -> Tensor:
    """`fake_quantize` with a learned scale, whose gradient is balanced against that of weights.

    The gradient by the step is multiplied by `1 / sqrt(count * quant_max)`, so that its ratio to
    the step is of the size of a weight's. The mask for x is that of `fake_quantize`, which takes
    in half a step more at either end than the paper's.

    Args:
        x: Floating, any shape.
        step: The scale, of the shape `spec.scale_shape(x.shape)`; a parameter.
        spec: Bits, range, and what shares a step.
        count: How many values share a step: by default those of x, right for weights. For
            activations give the number of features of one example.

    Returns:
        The shape and dtype of x.

    >>> import torch
    >>> x, step = torch.tensor([0.3, 0.6, 9.0]), torch.tensor(0.5)
    >>> spec = QuantSpec(bits=2)
    >>> lsq(x, step, spec)
    tensor([0.5000, 0.5000, 0.5000])
    >>> torch.func.grad(lambda step: lsq(x, step, spec).sum())(step)  # (0.4 - 0.2 + 1) / sqrt(3)
    tensor(0.6928)
    """
    return fake_quantize(x, scale_grad(step, _balance(x, step, spec, count)), 0, spec)


def lsq_plus(
    x: Tensor, step: Tensor, offset: Tensor, spec: QuantSpec, *, count: int | None = None
) -> Tensor:
    """LSQ with a learned offset, for activations that are not centred at zero.

    The value is `offset + lsq(x - offset)`; the gradient by the offset is one where x was cut off,
    and zero inside.

    Args:
        x: Floating, any shape.
        step: The scale, of the shape `spec.scale_shape(x.shape)`; a parameter.
        offset: The value of code zero, of the shape of the step; a parameter.
        spec: Bits, range, and what shares a step.
        count: As for `lsq`.

    Returns:
        The shape and dtype of x.

    >>> import torch
    >>> spec = QuantSpec(bits=2, signed=False)
    >>> lsq_plus(torch.tensor([-1.0, 0.2, 9.0]), torch.tensor(0.5), torch.tensor(-0.25), spec)
    tensor([-0.2500,  0.2500,  1.2500])
    """
    blocks = spec.blocks(x)
    shift = spec.spread(offset, x.shape, "offset").to(x.dtype)
    centred = (blocks - shift).reshape(x.shape)
    quantized = lsq(centred, step, spec, count=count)
    return (spec.blocks(quantized) + shift).reshape(x.shape)


def lsq_init(x: Tensor, spec: QuantSpec) -> Tensor:
    """The step to start from: `2 mean|x| / sqrt(quant_max)` over what shares it, at least 2^-23.

    Args:
        x: The weights, or the activations of a first batch.
        spec: As for `lsq`.

    Returns:
        Shape `spec.scale_shape(x.shape)`, at least float32.

    >>> import torch
    >>> lsq_init(torch.tensor([[1.0, -1.0], [2.0, 0.0]]), QuantSpec(bits=2, axis=0))
    tensor([2., 2.])
    """
    rows = spec.rows(x.detach()).abs().to(torch.promote_types(x.dtype, torch.float32))
    step = rows.sum(-1) * (2 / math.sqrt(spec.quant_max) / max(1, rows.shape[-1]))
    return step.clamp_min(torch.finfo(torch.float32).eps)


def _balance(x: Tensor, step: Tensor, spec: QuantSpec, count: int | None) -> float:
    shared = x.numel() // max(1, step.numel()) if count is None else count
    return 1 / math.sqrt(max(1, shared) * spec.quant_max)
