"""Bilinear layers as one product."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._compat import lacks_rules
from funcloop.stateless._writes import Function, Watcher


def bilinear(
    guard: Watcher,
    func: Function,
    /,
    input1: Tensor,
    input2: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """`F.bilinear`: torch's operator has no batching rule, and one product does the same."""
    if not lacks_rules((input1, input2, weight)):
        return guard.proceed(func, input1, input2, weight, bias)
    output = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return output if bias is None else output + bias
