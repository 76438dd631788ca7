"""Schedule-free optimizers (Defazio et al. 2024, arXiv:2405.15682): averaging instead of decay."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import decayed
from funcloop.optim._extra import with_extra
from funcloop.optim._hyper import Hyper, as_tensor, check_betas, check_range, value_at, zero_count
from funcloop.optim._leaves import map_leaves, wide_copy
from funcloop.optim._rmsprop import scale_by_rms
from funcloop.optim._scale import scale_by_learning_rate


class ScheduleFreeState(NamedTuple):
    """State of `schedule_free`.

    Attributes:
        step: Updates so far, int64, 0-d.
        b1: Share of the average in the params, 0-d.
        weight_sum: Sum of the averaging weights, float64, 0-d.
        max_lr: Largest learning rate so far, float64, 0-d.
        z: Where the inner optimizer alone would be, structure of the params, at least float32.
        inner: State of the inner optimizer.
    """

    step: Tensor
    b1: Tensor
    weight_sum: Tensor
    max_lr: Tensor
    z: PyTree
    inner: OptState


def schedule_free(
    inner: Transform, lr: Hyper, b1: float | Tensor = 0.9, weight_lr_power: float = 2.0
) -> Transform:
    """`inner`, which must have no momentum, with averaging in place of a falling learning rate.

    Three points: z takes the inner optimizer's steps, x is the weighted average of z, and the
    params outside are `y = (1 - b1) * z + b1 * x`, where gradients are taken. Evaluate x, which
    `schedule_free_eval_params` computes. Schedules see count 0 at the first update (in Optax the
    averaging weight sees count 1).

    Args:
        inner: Gives the steps; it sees the params y.
        lr: The learning rate of `inner`, warmup included; it weighs the average.
        b1: Share of the average in the params, in (0, 1).
        weight_lr_power: The averaging weight is the largest lr so far to this power.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> from funcloop.optim import apply_updates, sgd
    >>> tx, params = schedule_free(sgd(0.5), lr=0.5), {"w": torch.tensor(1.0)}
    >>> state = tx.init(params)
    >>> for _ in range(30):
    ...     updates, state = tx.update(params, state, params)
    ...     params = apply_updates(params, updates)
    >>> bool(schedule_free_eval_params(state, params)["w"].abs() < 0.1)
    True
    """
    check_range("b1", b1, 0.0, 1.0, open_low=True)
    tx = with_extra(inner)

    def init(params: Params, /) -> OptState:
        step = zero_count(params)
        zero = torch.zeros_like(step, dtype=torch.float64)
        share = as_tensor(b1, step)
        return ScheduleFreeState(
            step, share, zero, zero.clone(), wide_copy(params), tx.init(params)
        )

    def update(
        updates: PyTree, state: ScheduleFreeState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        rate = as_tensor(value_at(lr, state.step), state.step).to(torch.float64)
        max_lr = torch.maximum(state.max_lr, rate)
        weight = max_lr**weight_lr_power
        total = state.weight_sum + weight
        newest = weight / torch.where(total > 0, total, 1.0)
        steps, new_inner = tx.update(updates, state.inner, params, **extra)
        updates, z = map_leaves(
            _move, steps, state=[state.z], reads=[params], scalars=[state.b1, newest]
        )
        new_state = ScheduleFreeState(state.step + 1, state.b1, total, max_lr, z, new_inner)
        return updates, new_state

    return Transform(init, update)


def _move(u: Tensor, z: Tensor, y: Tensor, b1: Tensor, newest: Tensor) -> tuple[Tensor, Tensor]:
    x = (y - (1 - b1) * z) / b1
    z = z + u
    x = torch.lerp(x, z, newest)
    return torch.lerp(z, x, b1) - y, z


def schedule_free_eval_params(state: ScheduleFreeState, params: Params) -> Params:
    """The averaged params x, for evaluation, in the dtypes of `params`.

    Args:
        state: A `schedule_free` state.
        params: The params that belong to it.

    >>> import torch
    >>> tx, params = schedule_free_sgd(0.1), {"w": torch.tensor(1.0)}
    >>> schedule_free_eval_params(tx.init(params), params)
    {'w': tensor(1.)}
    """

    def average(y: Tensor, z: Tensor) -> Tensor:
        b1 = state.b1.to(z.real.dtype if z.is_complex() else z.dtype)
        return ((y - (1 - b1) * z) / b1).to(y.dtype)

    return tree.map(average, params, state.z)


def schedule_free_sgd(
    lr: Hyper = 1.0,
    b1: float | Tensor = 0.9,
    weight_decay: Hyper = 0.0,
    weight_lr_power: float = 2.0,
) -> Transform:
    """Schedule-free SGD, as optax.contrib.schedule_free_sgd; see `schedule_free`.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule (a warmup).
        b1: Share of the average in the params.
        weight_decay: Added to the gradient.
        weight_lr_power: The averaging weight is the largest lr so far to this power.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = schedule_free_sgd(0.1), {"w": torch.tensor(1.0)}
    >>> updates, state = tx.update({"w": torch.tensor(1.0)}, tx.init(params), params)
    >>> updates
    {'w': tensor(-0.1000)}
    """
    inner = chain(decayed(chain(), weight_decay), scale_by_learning_rate(lr))
    return schedule_free(inner, lr, b1, weight_lr_power)


def schedule_free_adamw(
    lr: Hyper = 2.5e-3,
    betas: tuple[float | Tensor, Hyper] = (0.9, 0.999),
    eps: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    weight_lr_power: float = 2.0,
) -> Transform:
    """Schedule-free AdamW, as optax.contrib.schedule_free_adamw; see `schedule_free`.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule (a warmup).
        betas: Share of the average in the params, and decay of the second moment.
        eps: Added outside the root.
        weight_decay: Decoupled decay.
        weight_lr_power: The averaging weight is the largest lr so far to this power.

    Raises:
        ArgumentError: a number is out of range.

    >>> import torch
    >>> tx, params = schedule_free_adamw(0.1), {"w": torch.tensor(1.0)}
    >>> updates, state = tx.update({"w": torch.tensor(1.0)}, tx.init(params), params)
    >>> updates
    {'w': tensor(-0.1000)}
    """
    check_betas(betas)
    inner = chain(
        decayed(scale_by_rms(betas[1], eps, True), weight_decay, decoupled=True),
        scale_by_learning_rate(lr),
    )
    return schedule_free(inner, lr, betas[0], weight_lr_power)
