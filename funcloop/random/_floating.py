"""From random words to floating point: the unit interval, closed below or open on both sides.

float64 takes 53 bits of two words. Everything else is computed in float32 from one word, and then
rounded. The word of a float32 draw is the upper word of the float64 draw of the same key, so that
the two differ by rounding only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._errors import ArgumentError


def resolve(dtype: torch.dtype | None) -> tuple[torch.dtype, torch.dtype, int]:
    """The dtype to return, the one to compute in, and the bits that this takes.

    Raises:
        ArgumentError: the dtype is not a real floating one.
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        raise ArgumentError(
            "a continuous sampler draws real floating numbers", str(dtype), "draw, then convert"
        )
    return (dtype, torch.float64, 53) if dtype is torch.float64 else (dtype, torch.float32, 32)


def half_open(word: Tensor, bits: int) -> Tensor:
    """A number of [0, 1) on an even grid of 2**-24 (32 bits) or 2**-53 (53 bits)."""
    if bits == 32:
        return (word >> 8).to(torch.float32) * 2.0**-24
    return word.to(torch.float64) * 2.0**-53


def open_unit(word: Tensor, bits: int) -> Tensor:
    """A number of (0, 1), with all bits of the word near zero."""
    if bits == 32:
        return ((word.to(torch.float32) + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    return ((word.to(torch.float64) + 0.5) * 2.0**-53).clamp(max=1 - 2.0**-53)
