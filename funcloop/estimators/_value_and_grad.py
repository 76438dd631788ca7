"""The plain gradient of the weighted mean loss."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ShapeError
from funcloop._loss import evaluate_loss, weighted_mean, weights_of
from funcloop._purity import no_outer_graph
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
        leaves, structure = tree.flatten(params)
        _check_floating(params)

        def mean_loss(leaves: list[Tensor]) -> tuple[Tensor, tuple[Buffers, dict, Tensor]]:
            params = tree.unflatten(structure, leaves)
            losses, aux = evaluate_loss(loss_fn, params, buffers, batch, key)
            weight = weights_of(losses, aux)
            metrics = {name: weighted_mean(m, weight) for name, m in aux.metrics.items()}
            return weighted_mean(losses, weight), (aux.buffers, metrics, weight.sum())

        with no_outer_graph():
            gradient = torch.func.grad_and_value(mean_loss, has_aux=True)
            grads, (loss, (buffers, metrics, weight)) = gradient(leaves)
        return Estimate(tree.unflatten(structure, grads), loss, buffers, metrics, weight)

    return grad_fn


def _check_floating(params: Params) -> None:
    for leaf in tree.leaves(params):
        if not (leaf.is_floating_point() or leaf.is_complex()):
            wrong = [f"{p} is {x.dtype}" for p, x in tree.items(params) if x is leaf]
            raise ShapeError(
                "a gradient is taken with respect to floating params",
                wrong[0],
                "keep it in buffers",
            )
