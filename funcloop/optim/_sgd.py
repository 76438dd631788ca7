"""Stochastic gradient descent with torch.optim.SGD's momentum and decay."""

from __future__ import annotations

from funcloop._errors import ArgumentError
from funcloop._types import Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import add_decayed_weights
from funcloop.optim._hyper import Hyper, is_zero
from funcloop.optim._scale import scale, scale_by_learning_rate
from funcloop.optim._trace import trace


def sgd(
    lr: Hyper = 1e-3,
    momentum: Hyper = 0.0,
    dampening: Hyper = 0.0,
    weight_decay: Hyper = 0.0,
    nesterov: bool = False,
    *,
    maximize: bool = False,
) -> Transform:
    """torch.optim.SGD: `p -= lr * b` with `b = momentum * b + (1 - dampening) * (g + decay * p)`.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule.
        momentum: The same; a plain 0 keeps no buffer.
        dampening: The same; it does not bite at the first update.
        weight_decay: The same; added to the gradient (L2).
        nesterov: Nesterov's look-ahead.
        maximize: Ascend.

    Raises:
        ArgumentError: a number is out of range, or nesterov has dampening or no momentum.

    >>> import torch
    >>> from funcloop.optim import apply_updates
    >>> tx, params = sgd(0.1, momentum=0.9, dampening=0.5), {"w": torch.tensor(1.0)}
    >>> state = tx.init(params)
    >>> for _ in range(3):
    ...     updates, state = tx.update({"w": torch.tensor(1.0)}, state, params)
    ...     params = apply_updates(params, updates)
    >>> params
    {'w': tensor(0.5840)}
    """
    if nesterov and (is_zero(momentum) or not is_zero(dampening)):
        raise ArgumentError(
            "nesterov needs momentum and no dampening",
            f"momentum={momentum}, dampening={dampening}",
            "give momentum > 0 and dampening=0, or nesterov=False",
        )
    return chain(
        *([scale(-1.0)] if maximize else []),
        *([] if is_zero(weight_decay) else [add_decayed_weights(weight_decay)]),
        *([] if is_zero(momentum) else [trace(momentum, dampening, nesterov)]),
        scale_by_learning_rate(lr),
    )
