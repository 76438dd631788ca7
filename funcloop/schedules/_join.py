"""Schedules one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Schedule
from funcloop.schedules._count import as_float


def join(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Each schedule from its boundary on, where it sees count 0: torch's SequentialLR.

    Args:
        schedules: In their order.
        boundaries: The count at which each but the first begins; one fewer than schedules.

    Raises:
        ArgumentError: the boundaries fall, or there are too many or too few.

    >>> import torch
    >>> from funcloop.schedules import constant, linear
    >>> join([linear(0.0, 1.0, 2), constant(5.0)], [2])(torch.arange(4))
    tensor([0.0000, 0.5000, 5.0000, 5.0000], dtype=torch.float64)
    """
    if len(boundaries) != len(schedules) - 1 or any(a > b for a, b in pairwise(boundaries)):
        raise ArgumentError(
            "boundaries rise, one between each two schedules",
            f"{len(schedules)} schedules and boundaries {list(boundaries)}",
            "give the count at which each schedule but the first begins",
        )

    def schedule(count: Tensor, /) -> Tensor:
        step = as_float(count)
        value = schedules[0](step)
        for begin, piece in zip(boundaries, schedules[1:], strict=True):
            # Before its turn a schedule sees count 0, not a count that it does not know.
            value = torch.where(step >= begin, piece((step - begin).clamp_min(0.0)), value)
        return value

    return schedule
