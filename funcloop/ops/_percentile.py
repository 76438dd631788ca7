"""A range that leaves out the outermost values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop.ops._observer import Observer, make_observer, running_mean
from funcloop.ops._spec import QuantSpec


def percentile(spec: QuantSpec, percent: float = 99.9) -> Observer:
    """The mean over tensors of the percentiles `100 - percent` and `percent`.

    Percentiles are interpolated linearly, as NumPy's are; a NaN gives NaN.

    Args:
        spec: Which values share a scale, and the codes they are spread over.
        percent: In (50, 100]; 100 is the mean of the extremes.

    >>> import torch
    >>> observer = percentile(QuantSpec(), percent=75.0)
    >>> x = torch.tensor([0.0, 1.0, 2.0, 3.0, 100.0])
    >>> observer.observe(observer.init(x), x)[:2]
    (tensor(1.), tensor(3.))
    """
    if not 50 < percent <= 100:
        raise ArgumentError(
            "a percentile observer keeps more than half of the values",
            f"percent={percent}",
            "use 99.9, or 100 for the extremes",
        )

    def ends(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = spec.rows(x).sort(-1).values
        nan = rows[..., -1].isnan()  # NaN is sorted last
        pair = _at(rows, 1 - percent / 100), _at(rows, percent / 100)
        return torch.where(nan, torch.nan, pair[0]), torch.where(nan, torch.nan, pair[1])

    return make_observer(spec, ends, running_mean, running_mean)


def _at(rows: Tensor, fraction: float) -> Tensor:
    place = fraction * (rows.shape[-1] - 1)
    below = math.floor(place)
    above = min(below + 1, rows.shape[-1] - 1)
    return torch.lerp(rows[..., below], rows[..., above], place - below)
