"""PACT: activations cut off at a learned bound. Choi et al. (2018), arXiv 1805.06085."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop.ops._fake_quantize import fake_quantize
from funcloop.ops._gradient import stop_gradient
from funcloop.ops._spec import QuantSpec
from funcloop.ops._straight_through import ste_clamp


def pact(x: Tensor, alpha: Tensor, bits: int) -> Tensor:
    """Clamp to `[0, alpha]` and round to `2^bits` levels.

    The gradient reaches x inside the bounds and alpha where x is above it.

    Args:
        x: Floating, any shape.
        alpha: The bound, 0-d, above zero; a parameter.
        bits: 2 to 8.

    Returns:
        The shape and dtype of x.

    >>> import torch
    >>> x, alpha = torch.tensor([-1.0, 0.4, 5.0]), torch.tensor(1.5)
    >>> pact(x, alpha, bits=2)
    tensor([0.0000, 0.5000, 1.5000])
    >>> torch.func.grad(lambda alpha: pact(x, alpha, bits=2).sum())(alpha)
    tensor(1.)
    """
    spec = QuantSpec(bits=bits, signed=False)
    wide = torch.promote_types(torch.promote_types(x.dtype, alpha.dtype), torch.float32)
    # a bound that has fallen below zero still gets its gradient, and finds back
    bound = ste_clamp(alpha.to(wide), low=spec.quant_max * torch.finfo(torch.float32).tiny)
    scale = stop_gradient(bound) / spec.quant_max
    bound = spec.spread(bound, x.shape, "bound")
    clamped = torch.clamp(x.to(wide), torch.zeros_like(bound), bound)
    return fake_quantize(clamped, scale, 0, spec).to(x.dtype)
