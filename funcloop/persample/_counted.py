"""Buffers that count, for a bound that changes from call to call."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from funcloop._types import Buffers


class Counted(NamedTuple):
    """Buffers, and how often a gradient was computed with them, for a scheduled bound.

    Attributes:
        buffers: The model's buffers.
        calls: 0-d int64.
    """

    buffers: Buffers
    calls: Tensor
