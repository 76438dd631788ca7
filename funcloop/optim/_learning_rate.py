"""The learning rate that an optimizer state used last."""

from __future__ import annotations

from torch import Tensor

from funcloop._pytree import open_node
from funcloop._types import OptState
from funcloop.optim._scale import LearningRateState


def learning_rate(opt_state: OptState) -> Tensor | None:
    """The learning rate of the last update, 0-d, or None where no link has one.

    An optimizer with several (parameter groups, an inner and an outer one) reports the first in the
    order of its state.

    >>> import torch
    >>> from funcloop.optim import sgd
    >>> learning_rate(sgd(0.5).init({"w": torch.ones(2)}))
    tensor(0.5000, dtype=torch.float64)
    """
    if isinstance(opt_state, LearningRateState):
        return opt_state.learning_rate
    node = None if isinstance(opt_state, Tensor) else open_node(opt_state)
    for child in node.children if node else ():
        found = learning_rate(child)
        if found is not None:
            return found
    return None
