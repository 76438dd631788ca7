"""Projections: updates changed so that the params stay inside a set."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from funcloop._types import Transform
from funcloop.optim._clip import clip_factor
from funcloop.optim._hyper import check_range
from funcloop.optim._stateless import stateless_with_params


def project(projection: Callable[[Tensor], Tensor]) -> Transform:
    """Updates that lead to `projection(param + update)`; put it last, `masked` to choose leaves.

    Args:
        projection: A function of one leaf, real and at least float32.

    >>> import torch
    >>> tx = project(lambda x: x.round())
    >>> tx.update({"w": torch.tensor(0.4)}, (), {"w": torch.tensor(1.3)})[0]
    {'w': tensor(0.7000)}
    """
    return stateless_with_params(lambda update, param: projection(param + update) - param)


def keep_non_negative() -> Transform:
    """Params that would become negative become zero.

    >>> import torch
    >>> keep_non_negative().update({"w": torch.tensor(-3.0)}, (), {"w": torch.tensor(1.0)})[0]
    {'w': tensor(-1.)}
    """
    return project(lambda x: x.clamp_min(0.0))


def keep_in_ball(max_norm: float = 1.0) -> Transform:
    """The nearest params whose L2 norm along the last dimension is at most `max_norm`.

    Raises:
        ArgumentError: max_norm is not positive.

    >>> import torch
    >>> tx = keep_in_ball()
    >>> tx.update({"w": torch.tensor([3.0, 4.0])}, (), {"w": torch.tensor([0.0, 0.0])})[0]
    {'w': tensor([0.6000, 0.8000])}
    """
    check_range("max_norm", max_norm, open_low=True)

    def ball(x: Tensor) -> Tensor:
        rows = x if x.ndim else x[None]
        norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return (rows * clip_factor(norm, max_norm)).reshape(x.shape)

    return project(ball)


def keep_on_simplex() -> Transform:
    """The nearest params that are non-negative and add up to one along the last dimension.

    Source: Duchi et al. 2008, "Efficient projections onto the l1-ball".

    >>> import torch
    >>> tx = keep_on_simplex()
    >>> tx.update({"w": torch.tensor([1.0, 0.0])}, (), {"w": torch.tensor([0.5, 0.5])})[0]
    {'w': tensor([ 0.5000, -0.5000])}
    """
    return project(_simplex)


def _simplex(x: Tensor) -> Tensor:
    rows = x if x.ndim else x[None]  # (..., n)
    falling = rows.sort(dim=-1, descending=True).values
    excess = falling.cumsum(-1) - 1
    rank = torch.arange(1, rows.shape[-1] + 1, dtype=x.dtype, device=x.device)
    kept = (falling * rank > excess).sum(-1, keepdim=True)  # how many entries stay positive
    threshold = excess.gather(-1, kept - 1) / kept
    return (rows - threshold).clamp_min(0.0).reshape(x.shape)
