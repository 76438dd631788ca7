"""LARS (You et al. 2017, arXiv:1708.03888): momentum SGD with a trust ratio for each leaf."""

from __future__ import annotations

from funcloop._types import Transform
from funcloop.optim._block import scale_by_trust_ratio
from funcloop.optim._chain import chain
from funcloop.optim._decay import add_decayed_weights
from funcloop.optim._hyper import Hyper, is_zero
from funcloop.optim._labels import Mask
from funcloop.optim._partition import masked
from funcloop.optim._scale import scale_by_learning_rate
from funcloop.optim._trace import trace


def lars(
    lr: Hyper = 1e-3,
    weight_decay: Hyper = 0.0,
    trust_coefficient: float = 1e-3,
    eps: float = 0.0,
    momentum: Hyper = 0.9,
    nesterov: bool = False,
    mask: Mask | None = None,
) -> Transform:
    """LARS, as optax.lars: the momentum averages steps that already carry the learning rate.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule.
        weight_decay: Added to the gradient: the same.
        trust_coefficient: Factor of the trust ratio.
        eps: Added to the update's norm.
        momentum: Of the steps.
        nesterov: Look ahead.
        mask: Which leaves decay and are scaled by their trust ratio; see `masked`.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = lars(1.0, trust_coefficient=0.1), {"w": torch.tensor([3.0, 4.0])}
    >>> tx.update({"w": torch.tensor([6.0, 8.0])}, tx.init(params), params)[0]
    {'w': tensor([-0.3000, -0.4000])}
    """
    ratio = scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps)
    return chain(
        *([] if is_zero(weight_decay) else [add_decayed_weights(weight_decay, mask)]),
        ratio if mask is None else masked(ratio, mask),
        scale_by_learning_rate(lr),
        trace(momentum, nesterov=nesterov),
    )
