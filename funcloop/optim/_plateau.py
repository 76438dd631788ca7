"""A learning rate that falls when the loss stops falling, as torch's ReduceLROnPlateau."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError, StructureError
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._hyper import check_range, zero_count
from funcloop.optim._leaves import map_leaves


class PlateauState(NamedTuple):
    """State of `reduce_on_plateau`; all 0-d.

    Attributes:
        scale: Factor of the updates, float64.
        best: Best mean value so far, float64.
        bad: Windows since then, int64.
        cooldown: Windows of cooldown left, int64.
        seen: Values in the window so far, int64.
        total: Their sum, float64.
    """

    scale: Tensor
    best: Tensor
    bad: Tensor
    cooldown: Tensor
    seen: Tensor
    total: Tensor


def reduce_on_plateau(
    factor: float = 0.1,
    patience: int = 10,
    threshold: float = 1e-4,
    threshold_mode: str = "rel",
    cooldown: int = 0,
    min_scale: float = 0.0,
    eps: float = 1e-8,
    mode: str = "min",
    every: int = 1,
) -> Transform:
    """Scale updates by a factor that falls when `value=` stops improving; chain it after the rest.

    The value given with an update counts before that update, so a reduction acts at once. What
    torch calls an epoch is a window of `every` updates here, and its value their mean.

    Args:
        factor: What the scale is multiplied by.
        patience: Windows without improvement that are tolerated.
        threshold: What counts as improvement.
        threshold_mode: "rel" or "abs".
        cooldown: Windows after a reduction in which nothing is counted.
        min_scale: Smallest scale.
        eps: A smaller change of the scale is not made.
        mode: Whether the value should fall ("min") or rise ("max").
        every: Updates in a window; a per-step loss is too noisy for 1.

    Raises:
        ArgumentError: an argument is out of range.
        StructureError: at `update`, there is no `value=`.

    >>> import torch
    >>> tx, params = reduce_on_plateau(0.5, patience=0), {"w": torch.tensor(0.0)}
    >>> grads, state = {"w": torch.tensor(1.0)}, tx.init(params)
    >>> for _ in range(2):
    ...     updates, state = tx.update(grads, state, params, value=torch.tensor(3.0))
    >>> updates
    {'w': tensor(0.5000)}
    """
    check_range("factor", factor, 0.0, 1.0)
    check_range("every", every, 1)
    if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
        raise ArgumentError(
            "mode is 'min' or 'max', threshold_mode 'rel' or 'abs'",
            f"{mode!r}, {threshold_mode!r}",
            "use mode='min', threshold_mode='rel'",
        )
    rule = _Rule(factor, patience, threshold, threshold_mode, cooldown, min_scale, eps, mode)

    def init(params: Params, /) -> OptState:
        none = zero_count(params)
        one = torch.ones_like(none, dtype=torch.float64)
        worst = torch.full_like(one, float("inf") if mode == "min" else float("-inf"))
        return PlateauState(one, worst, none, none.clone(), none.clone(), torch.zeros_like(one))

    def update(
        updates: PyTree, state: PlateauState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        if "value" not in extra:
            raise StructureError(
                "reduce_on_plateau looks at the loss",
                "update without value=",
                "call update(grads, state, params, value=loss); train_step does",
            )
        value = torch.as_tensor(extra["value"]).detach().to(state.total)
        longer = state._replace(seen=state.seen + 1, total=state.total + value)
        judged = _judge(rule, state, longer.total / longer.seen)
        state = tree.where(longer.seen >= every, judged, longer)
        (updates,) = map_leaves(lambda u, s: u * s, updates, scalars=[state.scale])
        return updates, state

    return Transform(init, update)


class _Rule(NamedTuple):
    factor: float
    patience: int
    threshold: float
    threshold_mode: str
    cooldown: int
    min_scale: float
    eps: float
    mode: str


def _judge(rule: _Rule, state: PlateauState, value: Tensor) -> PlateauState:
    """The state after a window of this mean value."""
    better = _improves(rule, value, state.best)
    bad = torch.where(better | (state.cooldown > 0), 0, state.bad + 1)
    reduce = bad > rule.patience
    lower = (state.scale * rule.factor).clamp_min(rule.min_scale)
    changed = reduce & (state.scale - lower > rule.eps)
    return PlateauState(
        torch.where(changed, lower, state.scale),
        torch.where(better, value, state.best),
        torch.where(reduce, 0, bad),
        torch.where(reduce, rule.cooldown, (state.cooldown - 1).clamp_min(0)),
        torch.zeros_like(state.seen),
        torch.zeros_like(state.total),
    )


def _improves(rule: _Rule, value: Tensor, best: Tensor) -> Tensor:
    sign = 1.0 if rule.mode == "min" else -1.0
    if rule.threshold_mode == "abs":
        return sign * value < sign * best - rule.threshold
    return sign * value < sign * best * (1 - sign * rule.threshold)
