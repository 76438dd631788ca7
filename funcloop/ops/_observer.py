"""Observers: what a range is learned from, as pure functions of a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from funcloop.ops._spec import QuantSpec


class Range(NamedTuple):
    """The state of an observer; a pytree.

    Attributes:
        low: Lower end, of the shape of the scale, at least float32.
        high: Upper end, the same.
        observed: How many tensors so far, 0-d int64.
    """

    low: Tensor
    high: Tensor
    observed: Tensor


#: `x -> (low, high)`, each of the shape of the scale, for one tensor.
Ends = Callable[[Tensor], tuple[Tensor, Tensor]]
#: `(old, new, observed) -> end`: one end of the range after another tensor.
Merge = Callable[[Tensor, Tensor, Tensor], Tensor]


class Observer(NamedTuple):
    """Three pure functions, as a Transform is two.

    Attributes:
        init: `x -> Range` before anything is observed; x lends its shape, dtype and device.
        observe: `(Range, x) -> Range`. An empty x leaves the state as it is; a NaN stays in it.
        scale_zero_point: `Range -> (scale, zero_point)` for `fake_quantize`, the scale at least
            2^-23, the zero point int32.
    """

    init: Callable[[Tensor], Range]
    observe: Callable[[Range, Tensor], Range]
    scale_zero_point: Callable[[Range], tuple[Tensor, Tensor]]


def make_observer(spec: QuantSpec, ends: Ends, low: Merge, high: Merge) -> Observer:
    """An observer from the ends of one tensor and how they are merged with the state."""

    def init(x: Tensor) -> Range:
        wide = torch.promote_types(x.dtype, torch.float32)
        shape = spec.scale_shape(x.shape)
        none = torch.full(shape, float("inf"), dtype=wide, device=x.device)
        return Range(none, -none, torch.zeros((), dtype=torch.int64, device=x.device))

    def observe(state: Range, x: Tensor) -> Range:
        if not x.numel():
            return state
        wide = x.detach().to(state.low.dtype)
        new_low, new_high = ends(wide)
        return Range(
            low(state.low, new_low, state.observed),
            high(state.high, new_high, state.observed),
            state.observed + 1,
        )

    return Observer(init, observe, lambda state: range_to_scale(state.low, state.high, spec))


def extremes(spec: QuantSpec) -> Ends:
    """Minimum and maximum over what shares a scale."""

    def ends(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = spec.rows(x)
        return rows.amin(-1), rows.amax(-1)

    return ends


def running_mean(old: Tensor, new: Tensor, count: Tensor) -> Tensor:
    """The mean over tensors; the first one is taken as it is."""
    return torch.where(count == 0, new, old + (new - old) / (count + 1))


def range_to_scale(low: Tensor, high: Tensor, spec: QuantSpec) -> tuple[Tensor, Tensor]:
    """Scale and zero point for values between `low` and `high`; zero always has a code."""
    eps = torch.finfo(torch.float32).eps
    low, high = low.clamp_max(0), high.clamp_min(0)
    if spec.symmetric:
        largest = torch.maximum(-low, high) if spec.signed else high
        scale = (largest / spec.quant_max).clamp_min(eps)
        return scale, torch.zeros_like(scale, dtype=torch.int32)
    levels = spec.quant_max - spec.quant_min
    scale = (high / levels - low / levels).clamp_min(eps)  # their difference may overflow
    zero_point = spec.quant_min - torch.round(low * (1 / scale)).nan_to_num()
    return scale, zero_point.clamp(spec.quant_min, spec.quant_max).to(torch.int32)
