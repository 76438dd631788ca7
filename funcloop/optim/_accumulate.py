"""Several gradients for one update: the exact weighted mean over a window of calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._apply_if import or_nothing
from funcloop.optim._extra import with_extra
from funcloop.optim._hyper import zero_count
from funcloop.optim._leaves import map_leaves, zeros_like


class AccumulateState(NamedTuple):
    """State of `accumulate`.

    Attributes:
        step: Gradients in the window so far, int64, 0-d.
        weight: Their total weight, float64, 0-d.
        value: Weighted sum of their losses, float64, 0-d.
        grads: Weighted sum of the gradients, structure of the params, at least float32.
        inner: State of the inner transform, which counts updates and not gradients.
    """

    step: Tensor
    weight: Tensor
    value: Tensor
    grads: PyTree
    inner: OptState


def accumulate(inner: Transform, every: int) -> Transform:
    """`inner` once every `every` calls, with the weighted mean of the gradients of the window.

    Between, the updates leave the params as they are. Each call may give `weight=`, the number of
    examples (or tokens) its gradient is the mean of; without it each weighs one. Sums are held in
    at least float32. A window that weighs nothing is no update: params and inner state stay.
    Schedules of the inner transform count updates. `estimators.accumulate` does the same within one
    step without the state.

    Args:
        inner: Any transform; it gets the window's mean as `value=` where calls give `value=`.
        every: Calls per update.

    Raises:
        ArgumentError: every is not positive.

    >>> import torch
    >>> from funcloop.optim import sgd
    >>> tx, params = accumulate(sgd(1.0), every=2), {"w": torch.tensor(0.0)}
    >>> state = tx.init(params)
    >>> for gradient, weight in ((10.0, 1.0), (2.0, 3.0)):
    ...     updates, state = tx.update(
    ...         {"w": torch.tensor(gradient)}, state, params, weight=torch.tensor(weight)
    ...     )
    >>> updates
    {'w': tensor(-4.)}
    """
    if every < 1:
        raise ArgumentError("every is at least one", f"every={every}", "give a positive int")
    tx = with_extra(inner)

    def init(params: Params, /) -> OptState:
        step = zero_count(params)
        zero = torch.zeros_like(step, dtype=torch.float64)
        return AccumulateState(step, zero, zero.clone(), zeros_like(params), tx.init(params))

    def update(
        updates: PyTree, state: AccumulateState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        sums = _add(state, updates, extra)
        divisor = torch.where(sums.weight > 0, sums.weight, 1.0)
        mean, _ = map_leaves(_share, updates, state=[sums.grads], scalars=[divisor])
        if "value" in extra:
            extra["value"] = sums.value / divisor
        changed, new_inner = tx.update(mean, state.inner, params, **extra)
        full = sums.step == every
        holds = full & (sums.weight > 0)
        kept = tree.where(full, tree.zeros_like(sums), sums)
        new_state = kept._replace(inner=tree.where(holds, new_inner, state.inner))
        return or_nothing(holds, changed), new_state

    return Transform(init, update)


def _add(state: AccumulateState, updates: PyTree, extra: dict[str, Any]) -> AccumulateState:
    """The window with one more gradient, taken out of `extra` with its weight; no inner state."""
    weight = torch.as_tensor(extra.pop("weight", 1.0), device=state.step.device)
    weight = weight.to(torch.float64)
    value = torch.where(weight == 0, 0.0, extra.get("value", torch.zeros(())) * weight)
    _, grads = map_leaves(_sum, updates, state=[state.grads], scalars=[weight])
    return AccumulateState(
        state.step + 1, state.weight + weight, state.value + value, grads, inner=None
    )


def _sum(grad: Tensor, total: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    # An example of weight zero never contributes, also not a NaN.
    return grad, total + torch.where(weight == 0, 0.0, grad * weight)


def _share(grad: Tensor, total: Tensor, divisor: Tensor) -> tuple[Tensor, Tensor]:
    return total / divisor, total
