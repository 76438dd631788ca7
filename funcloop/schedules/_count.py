"""The update count as a float64 number: exact, and as precise as Python's floats."""

from __future__ import annotations

import torch
from torch import Tensor


def as_float(count: Tensor | int) -> Tensor:
    """`count` as a float64 tensor; every schedule computes, and returns, float64."""
    return torch.as_tensor(count).to(torch.float64)
