"""Gradients of a scaled loss (Micikevicius et al. 2018, arXiv 1710.03740)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ShapeError, StructureError
from funcloop._gradient import mean_gradient
from funcloop._types import Batch, Buffers, Estimate, Key, LossFn, Params
from funcloop.precision._mixed import mixed_loss
from funcloop.precision._policy import Precision
from funcloop.precision._scale import LossScale, dynamic


class Scaled(NamedTuple):
    """Buffers, and the scale of the loss: how a loss-scaled GradFn is given it.

    Attributes:
        buffers: The model's buffers.
        scale: The factor, 0-d float32.
    """

    buffers: Buffers
    scale: Tensor


class LossScaled:
    """What `loss_scaled` returns: a GradFn.

    Attributes:
        loss_scale: What to begin with: `TrainState.create(..., loss_scale=grad_fn.loss_scale)`.
    """

    def __init__(self, loss_fn: LossFn, scale: LossScale) -> None:
        self._loss_fn, self.loss_scale = loss_fn, scale

    def init(self, buffers: Buffers) -> Scaled:
        """Buffers with the scale to begin with, for calls outside of a `train_step`."""
        return Scaled(buffers, self.loss_scale.scale)

    def __call__(self, params: Params, buffers: Buffers, batch: Batch, key: Key) -> Estimate:
        """The Estimate: see `loss_scaled`."""
        if not isinstance(buffers, Scaled):
            raise StructureError(
                "a loss scale is a part of the state",
                f"buffers of type {type(buffers).__name__} without one",
                "TrainState.create(..., loss_scale=grad_fn.loss_scale); outside of a train_step, "
                "begin with buffers = grad_fn.init(buffers)",
            )
        for path, leaf in tree.items(params):
            if leaf.dtype is torch.float16:
                raise ShapeError(
                    "gradients are unscaled in the dtype of the params, where they must not vanish",
                    f"{path or 'params'} is float16",
                    'keep the params in float32: Policy("params=float32,compute=float16")',
                )
        inner, scale = buffers
        estimate = mean_gradient(self._loss_fn, params, inner, batch, key, scale)
        return estimate._replace(buffers=Scaled(estimate.buffers, scale))


def loss_scaled(
    loss_fn: LossFn, policy: Precision | None = None, scale: LossScale | None = None
) -> LossScaled:
    """The gradient by way of a scaled loss, whose float16 gradients do not vanish.

    The mean loss is multiplied by the scale and the gradient divided by it, so the Estimate does
    not depend on it: clipping, accumulation and noise around this GradFn see true gradients, and
    one that has overflowed as an infinity or a NaN. `train_step` then leaves params, optimizer
    state and buffers as they are, and adjusts the scale; `state.step` counts on, so the next step
    has its own key and data. Overflow in one microbatch of `accumulate` skips the whole step.

    bfloat16 has the range of float32 and needs no scale.

    Args:
        loss_fn: Any LossFn.
        policy: Its precision, as for `mixed_loss`. None where it computes in low precision by
            itself, e.g. with a `mixed` model.
        scale: `dynamic(...)`, which is the default, or `static(...)`.

    Returns:
        A GradFn with `loss_scale`, which goes into the state. The step's metrics are then also
        `loss_scale` and `skipped` (0 or 1).

    Raises:
        StructureError: at the call, without a loss scale in the state.
        ShapeError: at the call, with params in float16, in which the unscaled gradients vanish.

    >>> import torch
    >>> from funcloop.precision import Policy, static
    >>> loss_fn = lambda params, buffers, x, key: 1e-8 * (x @ params)  # zero in float16
    >>> grad_fn = loss_scaled(loss_fn, Policy("compute=float16"), static(1024.0))
    >>> grad_fn(torch.ones(1), grad_fn.init({}), torch.ones(1, 1), None).grads
    tensor([1.0012e-08])
    """
    low = loss_fn if policy is None else mixed_loss(loss_fn, policy)
    return LossScaled(low, dynamic() if scale is None else scale)
