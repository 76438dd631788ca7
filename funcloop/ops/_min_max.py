"""The range that everything observed fits in."""

from __future__ import annotations

import torch

from funcloop.ops._observer import Observer, extremes, make_observer
from funcloop.ops._spec import QuantSpec


def min_max(spec: QuantSpec) -> Observer:
    """The smallest and the largest value of all tensors observed.

    Args:
        spec: Which values share a scale, and the codes they are spread over.

    >>> import torch
    >>> observer = min_max(QuantSpec(bits=8, narrow=True))
    >>> x = torch.tensor([-1.27, 0.5])
    >>> state = observer.observe(observer.init(x), x)
    >>> observer.scale_zero_point(state)
    (tensor(0.0100), tensor(0, dtype=torch.int32))
    """
    return make_observer(
        spec,
        extremes(spec),
        lambda old, new, count: torch.minimum(old, new),
        lambda old, new, count: torch.maximum(old, new),
    )
