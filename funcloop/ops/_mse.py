"""The range with the smallest rounding error."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop.ops._fake_quantize import quantization_error
from funcloop.ops._observer import Observer, extremes, make_observer, range_to_scale, running_mean
from funcloop.ops._spec import QuantSpec


def mse(spec: QuantSpec, candidates: int = 50) -> Observer:
    """The mean over tensors of the range whose quantization is nearest in the mean square.

    For each tensor the ranges tried are its extremes times `1, 1 - 1/candidates, ...`.

    Args:
        spec: Which values share a scale, and the codes they are spread over.
        candidates: How many ranges are tried, at least one.

    >>> import torch
    >>> observer = mse(QuantSpec(bits=2, narrow=True))
    >>> x = torch.tensor([1.0] * 20 + [1.6])
    >>> state = observer.observe(observer.init(x), x)
    >>> bool(0.95 < state.high < 1.1)
    True
    """
    if candidates < 1:
        raise ArgumentError(
            "at least one range is tried", f"candidates={candidates}", "use 50 or more"
        )
    outer = extremes(spec)

    def ends(x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = outer(x)
        best_low, best_high = low, high
        least = quantization_error(x, *range_to_scale(low, high, spec), spec)
        for i in range(1, candidates):
            a, b = low * (1 - i / candidates), high * (1 - i / candidates)
            error = quantization_error(x, *range_to_scale(a, b, spec), spec)
            better = error < least
            least = torch.where(better, error, least)
            best_low = torch.where(better, a, best_low)
            best_high = torch.where(better, b, best_high)
        return best_low, best_high

    return make_observer(spec, ends, running_mean, running_mean)
