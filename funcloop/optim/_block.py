"""Each leaf scaled by a norm of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop._types import Transform
from funcloop.optim._hyper import check_range
from funcloop.optim._stateless import stateless, stateless_with_params


def rms(x: Tensor) -> Tensor:
    """Root mean square of a leaf, 0-d; zero for an empty leaf, and with derivative zero at zero."""
    return torch.linalg.vector_norm(x) / max(x.numel(), 1) ** 0.5


def clip_by_block_rms(threshold: float) -> Transform:
    """Scale down each leaf whose root mean square exceeds `threshold` to just that.

    Raises:
        ArgumentError: threshold is not positive.

    >>> import torch
    >>> tx = clip_by_block_rms(1.0)
    >>> tx.update({"a": torch.tensor([3.0, 3.0]), "b": torch.tensor(0.5)}, (), {})[0]
    {'a': tensor([1., 1.]), 'b': tensor(0.5000)}
    """
    check_range("threshold", threshold, open_low=True)
    return stateless(lambda u: u / (rms(u) / threshold).clamp_min(1.0))


def scale_by_param_rms(min_scale: float = 1e-3) -> Transform:
    """Multiply each leaf's update by the root mean square of its param, or `min_scale` if larger.

    >>> import torch
    >>> tx = scale_by_param_rms()
    >>> tx.update({"w": torch.ones(2)}, (), {"w": torch.tensor([2.0, -2.0])})[0]
    {'w': tensor([2., 2.])}
    """
    check_range("min_scale", min_scale)
    return stateless_with_params(lambda u, p: u * rms(p).clamp_min(min_scale))


def scale_by_trust_ratio(
    min_norm: float = 0.0, trust_coefficient: float = 1.0, eps: float = 0.0
) -> Transform:
    """Multiply each leaf's update by `trust_coefficient * |param| / (|update| + eps)`.

    Where either norm is zero the ratio is one, as in Optax: a leaf at zero must be able to leave.

    Args:
        min_norm: Norms below it count as this.
        trust_coefficient: Factor of the ratio.
        eps: Added to the update's norm.

    >>> import torch
    >>> tx = scale_by_trust_ratio()
    >>> tx.update({"w": torch.tensor([3.0, 4.0])}, (), {"w": torch.tensor([10.0, 0.0])})[0]
    {'w': tensor([6., 8.])}
    """
    check_range("min_norm", min_norm)
    check_range("trust_coefficient", trust_coefficient, open_low=True)
    check_range("eps", eps)

    def formula(update: Tensor, param: Tensor) -> Tensor:
        of_param = torch.linalg.vector_norm(param).clamp_min(min_norm)
        of_update = torch.linalg.vector_norm(update).clamp_min(min_norm)
        usable = (of_param > 0) & (of_update > 0)
        ratio = trust_coefficient * of_param / torch.where(usable, of_update + eps, 1.0)
        return update * torch.where(usable, ratio, 1.0)

    return stateless_with_params(formula)
