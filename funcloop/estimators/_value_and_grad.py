"""The plain gradient of the weighted mean loss."""

from __future__ import annotations

from funcloop._gradient import mean_gradient
from funcloop._types import Batch, Buffers, Estimate, GradFn, Key, LossFn, Params


def value_and_grad(loss_fn: LossFn) -> GradFn:
    """The gradient of `sum(weight * losses) / sum(weight)`, exact for any weights.

    Args:
        loss_fn: `(params, buffers, batch, key) -> (losses, Aux)` with losses of shape (B,). A 0-d
            loss is taken as the loss of one example of weight one.

    Returns:
        A GradFn. Its Estimate has `grads` with the structure and dtypes of the params; `loss`,
        `weight` and metrics are 0-d and at least float32. Without any weight (an empty or wholly
        masked batch) gradients, loss and metrics are zero.

    Raises:
        ShapeError: the losses have more than one dimension, a metric or the weight has another
            shape than the losses, or a parameter is not floating.

    >>> import torch
    >>> def loss_fn(params, buffers, batch, key):
    ...     return params["w"] * batch
    >>> grad_fn = value_and_grad(loss_fn)
    >>> batch = torch.tensor([10.0, 2.0, 2.0, 2.0])
    >>> estimate = grad_fn({"w": torch.tensor(3.0)}, {}, batch, torch.tensor([0, 0]))
    >>> estimate.grads, estimate.loss, estimate.weight
    ({'w': tensor(4.)}, tensor(12.), tensor(4.))
    """

    def grad_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> Estimate:
        return mean_gradient(loss_fn, params, buffers, batch, key)

    return grad_fn
