"""A loop that stops early where values can be looked at, and is masked where they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from funcloop import tree
from funcloop._compat import values_are_known, wrapper_chain
from funcloop._errors import ArgumentError

S = TypeVar("S")
#: How many iterations: a number, or a 0-d integer tensor.
Limit = int | Tensor


def length(limit: Limit, bound: int | None) -> int:
    """The number of iterations that a traced loop is written out for.

    Raises:
        ArgumentError: the limit is a tensor, so that its value is unknown, and no bound is given.
    """
    if isinstance(limit, int):
        return limit if bound is None else min(limit, bound)
    if bound is None:
        raise ArgumentError(
            "an iteration limit that is a tensor needs a bound= for the traced loop",
            "maxiter is a tensor",
            "give bound=, an int that maxiter never exceeds",
        )
    return bound


def iterate(
    body: Callable[[S], S], state: S, going: Callable[[S], Tensor], limit: Limit, bound: int
) -> tuple[S, Tensor]:
    """`state = body(state)` while `going(state)` and at most `limit` times; and the count.

    Once the condition is false the state stays as it is, member for member under vmap. A trace
    contains `bound` iterations.
    """
    count = torch.zeros((), dtype=torch.int64, device=going(state).device)
    for _ in range(bound):
        active = going(state) & (count < limit)
        if _nobody(active):
            break
        state = tree.where(active, body(state), state)
        count = count + active
    return state, count


def _nobody(active: Tensor) -> bool:
    if not values_are_known(active):
        return False
    *_, plain = wrapper_chain(active)
    return not bool(plain.any())
