"""Weights of one bit and of three values.

Binary: Rastegari et al. (2016), XNOR-Net, arXiv 1603.05279. Ternary: Li et al. (2016), ternary
weight networks, arXiv 1605.04711.
"""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop.ops._function import function
from funcloop.ops._sign import ste_sign
from funcloop.ops._spec import QuantSpec


def binarize(w: Tensor, axis: int | None = None) -> Tensor:
    """`mean|w| * sign(w)`, the best binary approximation of w in the mean square.

    The mean is differentiated; the sign has the derivative of `clamp(w, -1, 1)`.

    Args:
        w: Weights, floating, any shape. Zero counts as positive.
        axis: The channel dimension, with a mean for each index; None for one mean in all.

    Returns:
        The shape and dtype of w.

    >>> import torch
    >>> binarize(torch.tensor([[1.0, -3.0], [0.5, 0.1]]), axis=0)
    tensor([[ 2.0000, -2.0000],
            [ 0.3000,  0.3000]])
    """
    return _magnitude(w, torch.ones_like(w), axis) * ste_sign(w)


def ternarize(w: Tensor, axis: int | None = None, threshold: float = 0.7) -> Tensor:
    """`a * t` with t in {-1, 0, 1}: zero up to `threshold * mean|w|`, and a the mean |w| beyond.

    The mean is differentiated; t has the derivative of `clamp(w, -1, 1)`.

    Args:
        w: Weights, floating, any shape.
        axis: The channel dimension, with a mean for each index; None for one mean in all.
        threshold: In units of the mean magnitude.

    Returns:
        The shape and dtype of w.

    >>> import torch
    >>> ternarize(torch.tensor([2.0, -0.1, 0.2, -1.0]))
    tensor([ 1.5000,  0.0000,  0.0000, -1.5000])
    """
    bound = threshold * _magnitude(w.detach(), torch.ones_like(w), axis)
    kept = (w.detach().abs() > bound).to(w.dtype)
    return _magnitude(w, kept, axis) * _ternary(w, kept)


def _magnitude(w: Tensor, kept: Tensor, axis: int | None) -> Tensor:
    """The mean |w| of what is kept in each channel, zero where nothing is; broadcasts against w."""
    spec = QuantSpec(axis=axis)
    total = spec.rows(kept).sum(-1)
    mean = spec.rows(w.abs() * kept).sum(-1) / torch.where(total == 0, 1, total)
    return spec.spread(mean, w.shape)


def _inside(grad: Tensor, _: Tensor, w: Tensor, kept: Tensor) -> tuple[Tensor, None]:
    return torch.where(w.abs() <= 1, grad, 0), None


_ternary = function(lambda w, kept: torch.where(kept == 0, 0, w.sign()), _inside)
