"""A sampler's parameter, number or tensor, laid against the shape of one key's values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcloop._errors import ShapeError


def against(
    shape: Sequence[int], value: float | Tensor, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """`value` as a tensor that broadcasts against (*K, *shape) without enlarging it.

    Raises:
        ShapeError: it does not broadcast against `shape`.
    """
    if not isinstance(value, Tensor):
        return torch.full((), value, dtype=dtype, device=device)
    fits = value.ndim <= len(shape) and all(
        mine in (1, yours)
        for mine, yours in zip(value.shape[::-1], tuple(shape)[::-1], strict=False)
    )
    if not fits:
        raise ShapeError(
            "a parameter broadcasts against the shape that is drawn",
            f"{tuple(value.shape)} against {tuple(shape)}",
            "draw the larger shape",
        )
    return value.to(device=device, dtype=dtype)
