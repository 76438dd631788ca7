"""Adaptive gradient clipping (Brock et al. 2021, arXiv:2102.06171), by unit."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._types import Transform
from funcloop.optim._clip import clip_factor
from funcloop.optim._hyper import check_range
from funcloop.optim._stateless import stateless_with_params


def adaptive_grad_clip(clipping: float, eps: float = 1e-3) -> Transform:
    """Scale down each unit whose update's norm exceeds `clipping * max(|unit of the param|, eps)`.

    A unit is one row of the first dimension (an output channel, in PyTorch's layout) of a leaf with
    two or more dimensions, and the whole of a vector or scalar.

    Args:
        clipping: Largest ratio of the norms.
        eps: Norm of a param below which it counts as this, so that zeros can move.

    Raises:
        ArgumentError: a number is not positive.

    >>> import torch
    >>> tx, params = adaptive_grad_clip(0.1), {"w": torch.tensor([[3.0, 4.0], [3.0, 4.0]])}
    >>> tx.update({"w": torch.tensor([[6.0, 8.0], [0.3, 0.4]])}, tx.init(params), params)[0]
    {'w': tensor([[0.3000, 0.4000], [0.3000, 0.4000]])}
    """
    check_range("clipping", clipping, open_low=True)
    check_range("eps", eps, open_low=True)

    def formula(update: Tensor, param: Tensor) -> Tensor:
        limit = clipping * _unit_norm(param).clamp_min(eps)
        return update * clip_factor(_unit_norm(update), limit)

    return stateless_with_params(formula)


def _unit_norm(x: Tensor) -> Tensor:
    """Norm of each row of the first dimension, ready to broadcast; of the whole for ndim < 2."""
    if x.ndim < 2:
        return torch.linalg.vector_norm(x)
    return torch.linalg.vector_norm(x, dim=list(range(1, x.ndim)), keepdim=True)
