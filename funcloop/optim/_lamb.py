"""LAMB (You et al. 2019, arXiv:1904.00962): Adam with a trust ratio for each leaf."""

from __future__ import annotations

from funcloop._types import Transform
from funcloop.optim._adam import scale_by_adam
from funcloop.optim._block import scale_by_trust_ratio
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._hyper import Hyper
from funcloop.optim._labels import Mask
from funcloop.optim._scale import scale_by_learning_rate


def lamb(
    lr: Hyper = 1e-3,
    betas: tuple[Hyper, Hyper] = (0.9, 0.999),
    eps: Hyper = 1e-6,
    weight_decay: Hyper = 0.0,
    mask: Mask | None = None,
) -> Transform:
    """LAMB, as optax.lamb.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule; so are the other numbers.
        betas: Decay of the two moments.
        eps: Added outside the root.
        weight_decay: Added to Adam's direction, before the trust ratio.
        mask: Which leaves decay; see `masked`.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = lamb(0.1), {"w": torch.tensor([3.0, 4.0])}
    >>> tx.update({"w": torch.tensor([1.0, 1.0])}, tx.init(params), params)[0]
    {'w': tensor([-0.3536, -0.3536])}
    """
    return chain(
        decayed(scale_by_adam(betas, eps), weight_decay, decoupled=True, mask=mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(lr),
    )
