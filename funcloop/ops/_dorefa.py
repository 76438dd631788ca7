"""DoReFa weights: squashed to [-1, 1] and rounded. Zhou et al. (2016), arXiv 1606.06160."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop.ops._spec import QuantSpec
from funcloop.ops._straight_through import ste_round


def dorefa(w: Tensor, bits: int) -> Tensor:
    """`2 quantize(tanh(w) / (2 max|tanh(w)|) + 1/2) - 1`, on `2^bits` levels in [-1, 1].

    There is no level at zero. Rounding is straight-through; tanh and maximum are differentiated.
    All-zero weights are not divided.

    Args:
        w: Weights, floating, any shape.
        bits: 2 to 8; one bit is `binarize`.

    Returns:
        The shape and dtype of w.

    >>> import torch
    >>> dorefa(torch.tensor([-2.0, -0.1, 0.1, 2.0]), bits=2)
    tensor([-1.0000, -0.3333,  0.3333,  1.0000])
    """
    levels = QuantSpec(bits=bits, signed=False).quant_max
    squashed = torch.tanh(w.to(torch.promote_types(w.dtype, torch.float32)))
    largest = squashed.abs().amax().reshape([1] * w.ndim) if w.numel() else squashed
    unit = squashed / (2 * torch.where(largest == 0, 1, largest)) + 0.5
    return (2 * (ste_round(unit * levels) / levels) - 1).to(w.dtype)
