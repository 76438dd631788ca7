"""Params together with learned hyperparameters of the inner optimizer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import Params, Schedule


class MetaParams(NamedTuple):
    """What a meta-learner with a learned inner optimizer learns; a pytree.

    Attributes:
        params: The initial params of every task.
        hyper: What the inner optimizer is made from: learning rates, decays; any tree.
    """

    params: Params
    hyper: PyTree

    @classmethod
    def with_rates(cls, params: Params, lr: float) -> MetaParams:
        """The params and one learning rate for each of their elements, which `metasgd` learns.

        >>> MetaParams.with_rates({"w": torch.ones(2)}, 0.1).hyper
        {'w': tensor([0.1000, 0.1000])}
        """
        return cls(params, tree.map(lambda p: torch.full_like(p, lr), params))


def per_step(values: Tensor) -> Schedule:
    """The schedule that is `values[n]` at update `n`, and the last value after the end.

    Args:
        values: Shape (steps,); differentiable.

    >>> per_step(torch.tensor([0.1, 0.01]))(torch.tensor(1))
    tensor(0.0100)
    """

    def schedule(count: Tensor) -> Tensor:
        place = count.clamp(0, len(values) - 1).reshape(1)
        return values.index_select(0, place.to(values.device)).squeeze(0)

    return schedule
