"""Rules of the convolutions and transposed convolutions, as products over unfolded patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from funcloop.persample._factor import Dense, Factor
from funcloop.persample._outer import Outer
from funcloop.persample._use import Use, register_rule

Size: TypeAlias = int | Sequence[int]


@register_rule(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Mapping[str, Use]:
    shape, dims = weight.shape, weight.ndim - 2
    kernel, strides, dilations = shape[2:], _each(stride, dims), _each(dilation, dims)
    sides = _sides(padding, kernel, dilations)

    def factor(grad: Tensor, input: Tensor) -> Factor:
        cells = grad.shape[grad.ndim - dims :]
        padded = F.pad(input, [side for pair in reversed(sides) for side in pair])
        patches = _patches(padded, groups, kernel, strides, dilations, cells)
        return Outer(_channels(grad, groups, dims), patches, shape)

    return {"weight": Use((input,), factor), "bias": Use((), _bias(dims))}


@register_rule(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def transposed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Mapping[str, Use]:
    """The input takes the place of the output gradient, and the other way round."""
    shape, dims = weight.shape, weight.ndim - 2
    kernel, strides, dilations = shape[2:], _each(stride, dims), _each(dilation, dims)
    pads = _each(padding, dims)

    def factor(grad: Tensor, input: Tensor) -> Factor:
        cells = input.shape[input.ndim - dims :]
        padded = F.pad(grad, [side for pad in reversed(pads) for side in (pad, pad)])
        patches = _patches(padded, groups, kernel, strides, dilations, cells)
        return Outer(_channels(input, groups, dims), patches, shape)

    return {"weight": Use((input,), factor), "bias": Use((), _bias(dims))}


def _each(size: Size, dims: int) -> tuple[int, ...]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return sizes * dims if len(sizes) == 1 else sizes


def _sides(
    padding: Size | str, kernel: Sequence[int], dilations: Sequence[int]
) -> list[tuple[int, int]]:
    """Zeros before and after each dimension."""
    if not isinstance(padding, str):
        return [(pad, pad) for pad in _each(padding, len(kernel))]
    if padding == "valid":
        return [(0, 0) for _ in kernel]
    totals = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    return [(total // 2, total - total // 2) for total in totals]  # as torch's "same" does


def _channels(x: Tensor, groups: int, dims: int) -> Tensor:
    """(B, [n,] C, *cells) as (B, G, positions, C / G)."""
    batch, channels = x.shape[0], x.shape[x.ndim - dims - 1]
    x = x.reshape(batch, -1, groups, channels // groups, x.shape[x.ndim - dims :].numel())
    if x.shape[1] == 1:
        return x[:, 0].mT
    return x.permute(0, 2, 1, 4, 3).flatten(2, 3)


def _patches(
    x: Tensor,
    groups: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    cells: Sequence[int],
) -> Tensor:
    """(B, [n,] C, *padded) as (B, G, positions, C / G * K): what each output cell has seen."""
    dims, batch = len(kernel), x.shape[0]
    first = x.ndim - dims
    for i, (k, s, d, n) in enumerate(zip(kernel, strides, dilations, cells, strict=True)):
        reach = (k - 1) * d + 1
        short = (n - 1) * s + reach - x.shape[first + i]
        if short > 0:  # output_padding of a transposed convolution never needs it; be safe
            x = F.pad(x, [0, 0] * (x.ndim - 1 - first - i) + [0, short])
        x = x.unfold(first + i, reach, s)[..., ::d].narrow(first + i, 0, n)
    x = x.reshape(batch, -1, groups, x.shape[first - 1] // groups, *cells, *kernel)
    outputs, inputs = range(4, 4 + dims), range(4 + dims, 4 + 2 * dims)
    x = x.permute(0, 2, 1, *outputs, *inputs, 3)  # (B, G, n, *cells, *kernel, C / G)
    return x.reshape(batch, groups, x.shape[2] * torch.Size(cells).numel(), -1)


def _bias(dims: int):
    def factor(grad: Tensor) -> Factor:
        channels = grad.shape[grad.ndim - dims - 1]
        return Dense(
            grad.reshape(grad.shape[0], -1, channels, grad.shape[-dims:].numel()).sum((1, 3))
        )

    return factor
