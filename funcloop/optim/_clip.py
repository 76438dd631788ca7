"""Clipping by the norm over all leaves, and by value."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._hyper import Hyper, check_range, value_at, zero_count
from funcloop.optim._leaves import map_leaves
from funcloop.optim._stateless import stateless


class ClipState(NamedTuple):
    """State of `clip_by_global_norm`.

    Attributes:
        step: Updates so far, int64, 0-d.
        norm: The global norm before clipping at the last update, 0-d float64; not finite where
            that update was dropped.
        dropped: Updates dropped so far because their norm was not finite, int64, 0-d.
    """

    step: Tensor
    norm: Tensor
    dropped: Tensor


def clip_by_global_norm(max_norm: Hyper, eps: float = 0.0) -> Transform:
    """Scale all updates by `max_norm / norm` where their global L2 norm exceeds `max_norm`.

    The norm neither overflows nor vanishes, and the derivative at zero is the identity. Updates
    whose norm is inf or NaN become zeros, never NaN, and the state says so (`norm`, `dropped`);
    `apply_if_finite` around the optimizer skips such a step altogether, moments and decay included.

    Args:
        max_norm: A positive float, 0-d tensor, or schedule.
        eps: Added to the norm. 0 is exact; 1e-6 is the form of torch.nn.utils.clip_grad_norm_,
            which clips a little more.

    Raises:
        ArgumentError: max_norm is a plain number that is not positive.

    >>> import torch
    >>> tx, params = clip_by_global_norm(1.0), {"w": torch.zeros(2)}
    >>> tx.update({"w": torch.tensor([6.0, 8.0])}, tx.init(params), params)[0]
    {'w': tensor([0.6000, 0.8000])}
    """
    check_range("max_norm", max_norm, open_low=True)
    check_range("eps", eps)

    def init(params: Params, /) -> OptState:
        count = zero_count(params)
        norm = torch.zeros((), dtype=torch.float64, device=count.device)
        return ClipState(count, norm, torch.zeros_like(count))

    def update(
        updates: PyTree, state: ClipState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        norm = tree.norm(updates).to(torch.float64)
        finite = norm.isfinite()
        factor = clip_factor(norm + eps, value_at(max_norm, state.step))
        (updates,) = map_leaves(_clipped, updates, scalars=[torch.where(finite, factor, 0.0)])
        dropped = state.dropped + (~finite).to(torch.int64)
        return updates, ClipState(state.step + 1, norm, dropped)

    return Transform(init, update)


def _clipped(u: Tensor, factor: Tensor) -> Tensor:
    # With a finite norm there is nothing to replace; otherwise the factor is 0, and 0 * inf is NaN.
    return (u * factor).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def clip_by_value(max_value: float | Tensor) -> Transform:
    """Limit every entry to [-max_value, max_value]; of a complex leaf, both its parts.

    Raises:
        ArgumentError: max_value is a plain number that is not positive.

    >>> import torch
    >>> clip_by_value(1.0).update({"w": torch.tensor([-3.0, 0.5])}, (), {})[0]
    {'w': tensor([-1.0000,  0.5000])}
    """
    check_range("max_value", max_value, open_low=True)

    def formula(u: Tensor) -> Tensor:
        limit = torch.as_tensor(max_value, dtype=u.dtype, device=u.device)
        return u.clamp(-limit, limit)

    return stateless(formula)


def clip_factor(norm: Tensor, max_norm: float | Tensor) -> Tensor:
    """`min(1, max_norm / norm)`, with derivative zero wherever the factor is one, zero included."""
    over = norm > max_norm
    return torch.where(over, max_norm / torch.where(over, norm, 1.0), 1.0)
