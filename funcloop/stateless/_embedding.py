"""Embeddings: `max_norm` rescales rows in place, gradients may be sparse, bags lack a vmap rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from funcloop._compat import lacks_rules
from funcloop.stateless._writes import Function, Watcher


class _StraightThrough(torch.autograd.Function):
    """`value`, with the gradient of `weight`: torch rescales outside of autograd."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        return tangents[0].clone()


def renormed(weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """The weight (V, D) in which the rows that `input` names have at most `max_norm`."""
    plain = weight.detach()
    flat = input.reshape(-1)
    used = torch.zeros_like(plain[:, 0]).scatter(0, flat, torch.ones_like(flat, dtype=plain.dtype))
    norms = plain.norm(norm_type, -1, keepdim=True)  # (V, 1)
    long = (used[:, None] > 0) & (norms > max_norm)
    scaled = torch.where(long, plain * (max_norm / (norms + 1e-7)), plain)  # torch's own 1e-7
    return _StraightThrough.apply(weight, scaled)  # type: ignore[return-value]  # a Tensor


def embedding(
    guard: Watcher,
    func: Function,
    /,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`F.embedding`: the rescaled rows are seen by this call only, and gradients are dense."""
    if max_norm is not None:
        weight = _rescale(guard, weight, input, max_norm, norm_type)
    return guard.proceed(func, input, weight, padding_idx, None, norm_type, scale_grad_by_freq)


def _rescale(
    guard: Watcher, weight: Tensor, input: Tensor, max_norm: float, norm_type: float
) -> Tensor:
    new = renormed(weight, input, max_norm, norm_type)
    guard.rebind(weight, new)  # torch writes it into the weight, and a tied layer then sees it
    return new


def embedding_bag(
    guard: Watcher,
    func: Function,
    /,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """`F.embedding_bag`: the same, and plain operators where torch has no rule."""
    if max_norm is not None:
        weight = _rescale(guard, weight, input, max_norm, norm_type)
    tensors = [t for t in (input, weight, offsets, per_sample_weights) if t is not None]
    if not lacks_rules(tensors):
        return guard.proceed(
            func,
            input,
            weight,
            offsets,
            None,
            norm_type,
            scale_grad_by_freq,
            mode,
            False,
            per_sample_weights,
            include_last_offset,
            padding_idx,
        )
    inside = _inside(input, offsets, include_last_offset)
    if padding_idx is not None:
        inside = inside & (input != padding_idx % weight.shape[0])
    rows = F.embedding(input, weight, padding_idx, scale_grad_by_freq=scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[..., None]
    return _reduce(rows, inside, mode)


def _inside(input: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor:
    """Which index is in which bag: bool of shape (bags, N); N is a bag's length for a matrix."""
    if offsets is None:
        return torch.ones_like(input, dtype=torch.bool)
    places = torch.arange(input.numel(), device=input.device)
    starts = offsets[:-1] if include_last_offset else offsets
    ends = torch.cat([starts[1:], offsets[-1:] if include_last_offset else _length(input, offsets)])
    return (places >= starts[:, None]) & (places < ends[:, None])


def _length(input: Tensor, like: Tensor) -> Tensor:
    return torch.full((1,), input.numel(), dtype=like.dtype, device=like.device)


def _reduce(rows: Tensor, inside: Tensor, mode: str) -> Tensor:
    """Sum, mean or maximum over each bag, (bags, D); zero for an empty bag.

    Args:
        rows: (bags, N, D) for a matrix of indices, (N, D) with offsets.
        inside: (bags, N).
        mode: "sum", "mean" or "max".
    """
    if mode == "max":
        highest = torch.where(inside[..., None], rows, float("-inf")).max(1).values
        return torch.where(inside.any(1, keepdim=True), highest, 0)
    share = inside.to(rows.dtype)
    if mode == "mean":
        share = share / share.sum(1, keepdim=True).clamp(min=1)
    return (share[:, None] @ rows).squeeze(1)
