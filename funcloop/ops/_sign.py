"""Binarization: the sign of a tensor, and the functions whose derivatives may stand for its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop.ops._straight_through import straight_through

Surrogate = Callable[[Tensor], Tensor]


def hardtanh_sign(x: Tensor) -> Tensor:
    """`clamp(x, -1, 1)`: slope one on [-1, 1], both ends included, and zero elsewhere.

    Source: Hubara et al. (2016), binarized neural networks, arXiv 1602.02830.

    >>> import torch
    >>> torch.func.vmap(torch.func.grad(hardtanh_sign))(torch.tensor([-2.0, 0.5, 1.0]))
    tensor([0., 1., 1.])
    """
    return x.clamp(-1, 1)


def identity_sign(x: Tensor) -> Tensor:
    """`x`: slope one everywhere.

    >>> import torch
    >>> torch.func.grad(identity_sign)(torch.tensor(5.0))
    tensor(1.)
    """
    return x * 1


def polynomial_sign(x: Tensor) -> Tensor:
    """`2 c - c |c|` with `c = clamp(x, -1, 1)`: slope `2 - 2 |x|` on [-1, 1] and zero elsewhere.

    Source: Liu et al. (2018), Bi-Real net, arXiv 1808.00278.

    >>> import torch
    >>> torch.func.vmap(torch.func.grad(polynomial_sign))(torch.tensor([-2.0, -0.25, 0.0]))
    tensor([0.0000, 1.5000, 2.0000])
    """
    inside = x.clamp(-1, 1)
    return 2 * inside - inside * inside.abs()


def tanh_sign(slope: float = 1.0) -> Surrogate:
    """The function `tanh(slope * x)`: slope `slope * (1 - tanh(slope * x)^2)`.

    Source: Gong et al. (2019), differentiable soft quantization, arXiv 1908.05033.

    Args:
        slope: How steep it is at zero, above zero. Many schemes let it grow while training.

    >>> import torch
    >>> torch.func.grad(tanh_sign(3.0))(torch.tensor(0.0))
    tensor(3.)
    """
    if isinstance(slope, (int, float)) and not slope > 0:
        raise ArgumentError("a slope is above zero", f"slope={slope}", "give a positive slope")

    def surrogate(x: Tensor) -> Tensor:
        return torch.tanh(slope * x)

    return surrogate


def ste_sign(x: Tensor, surrogate: Surrogate = hardtanh_sign) -> Tensor:
    """Plus or minus one, with the derivatives of `surrogate`.

    Zero, of either sign, gives plus one, so that a code always is one bit; NaN stays NaN.

    Args:
        x: Floating, any shape.
        surrogate: `hardtanh_sign`, `identity_sign`, `polynomial_sign`, `tanh_sign(slope)`, or any
            smooth elementwise function.

    >>> import torch
    >>> ste_sign(torch.tensor([-0.3, 0.0, 2.0]))
    tensor([-1.,  1.,  1.])
    >>> torch.func.vmap(torch.func.grad(ste_sign))(torch.tensor([-0.3, 0.0, 2.0]))
    tensor([1., 1., 0.])
    """
    return straight_through(_sign, surrogate)(x)


def _sign(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), x, torch.where(x >= 0, 1.0, -1.0).to(x.dtype))
