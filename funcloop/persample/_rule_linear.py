"""Rules of the matrix products: `F.linear`, `matmul`, `addmm`; any leading dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from funcloop.persample._factor import Dense, Factor
from funcloop.persample._outer import Outer
from funcloop.persample._use import Use, register_rule


@register_rule(F.linear)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Mapping[str, Use]:
    if weight.ndim != 2:
        return {}
    shape = weight.shape

    def factor(grad: Tensor, input: Tensor) -> Factor:
        return Outer(_positions(grad), _positions(input), shape)

    return {"weight": Use((input,), factor), "bias": Use((), _column_sum)}


@register_rule(
    torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm
)
def matmul(input: Tensor, other: Tensor) -> Mapping[str, Use]:
    if other.ndim != 2:
        return {}
    shape = other.shape

    def factor(grad: Tensor, input: Tensor) -> Factor:
        return Outer(_positions(input), _positions(grad), shape)

    return {"other": Use((input,), factor)}


@register_rule(torch.addmm, torch.Tensor.addmm)
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Mapping[str, Use]:
    if beta != 1 or alpha != 1:
        return {}
    uses = {"mat2": matmul(mat1, mat2)["other"]}
    return {**uses, "input": Use((), _column_sum)} if input.ndim == 1 else uses


def _positions(x: Tensor) -> Tensor:
    """(B, ..., d) as (B, 1, T, d): one group, and every leading dimension a position."""
    return x.reshape(x.shape[0], 1, -1, x.shape[-1])


def _column_sum(grad: Tensor) -> Factor:
    flat = grad.reshape(grad.shape[0], -1, grad.shape[-1])
    return Dense(flat[:, 0] if flat.shape[1] == 1 else flat.sum(1))
