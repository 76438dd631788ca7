"""A range that follows the recent ones."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop.ops._observer import Observer, extremes, make_observer
from funcloop.ops._spec import QuantSpec


def moving_average(spec: QuantSpec, momentum: float = 0.01) -> Observer:
    """`end + momentum * (new - end)` for the smallest and the largest value of each tensor.

    The first tensor is taken as it is; the numerics are those of torch's
    MovingAverageMinMaxObserver.

    Args:
        spec: Which values share a scale, and the codes they are spread over.
        momentum: The weight of a new tensor, in (0, 1].

    >>> import torch
    >>> observer = moving_average(QuantSpec(), momentum=0.5)
    >>> state = observer.init(torch.zeros(2))
    >>> for largest in (1.0, 3.0):
    ...     state = observer.observe(state, torch.tensor([0.0, largest]))
    >>> state.high
    tensor(2.)
    """
    if not 0 < momentum <= 1:
        raise ArgumentError(
            "momentum is the weight of a new tensor, in (0, 1]",
            f"momentum={momentum}",
            "use 0.01, or 1 to look at the last tensor only",
        )

    def follow(old: Tensor, new: Tensor, count: Tensor) -> Tensor:
        return torch.where(count == 0, new, old + momentum * (new - old))

    return make_observer(spec, extremes(spec), follow, follow)
