"""The same value at every update."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._types import Schedule
from funcloop.schedules._count import as_float


def constant(value: float | Tensor) -> Schedule:
    """`value` at every count, as a float64 tensor of the shape of `count`.

    >>> import torch
    >>> constant(0.1)(torch.tensor(7))
    tensor(0.1000, dtype=torch.float64)
    """

    def schedule(count: Tensor, /) -> Tensor:
        return torch.zeros_like(as_float(count)) + value

    return schedule
