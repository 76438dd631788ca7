"""The LossFn of the common case: a model, a criterion, and batches of (input, target)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from funcloop._errors import ShapeError
from funcloop._types import Aux, Batch, Buffers, Key, LossFn, Model, Params

Metric = Callable[[Tensor, Tensor], Tensor]


class Criterion(Protocol):
    """A loss of torch.nn.functional: `(output, target, *, reduction) -> losses`."""

    def __call__(self, output: Tensor, target: Tensor, /, *, reduction: str) -> Tensor: ...


def supervised(
    model: Model,
    criterion: Criterion,
    *,
    train: bool = True,
    metrics: Mapping[str, Metric] | None = None,
) -> LossFn:
    """The LossFn `criterion(model(input), target)`, one value for each example.

    A batch is `(input, target)` or `(input, target, weight)` with `weight` of shape (B,); padding
    has weight zero. Where the criterion gives several values for one example (tokens, pixels), they
    are averaged within the example.

    Args:
        model: What `stateless(net)` returned.
        criterion: `F.cross_entropy`, `F.mse_loss`, or anything that takes `reduction="none"`.
        train: Training or evaluation mode.
        metrics: By name, `(output, target) -> (B,)`. By default `accuracy` where the target holds
            class indices of shape (B,) and the output (B, C) scores.

    Raises:
        ShapeError: the criterion returns an average although asked for `reduction="none"`.

    >>> import torch, torch.nn.functional as F
    >>> from funcloop.stateless import stateless
    >>> model = stateless(torch.nn.Linear(2, 3))
    >>> loss_fn = supervised(model, F.cross_entropy)
    >>> batch = torch.ones(5, 2), torch.zeros(5, dtype=torch.int64)
    >>> losses, aux = loss_fn(*model.init(), batch, None)
    >>> losses.shape, list(aux.metrics)
    (torch.Size([5]), ['accuracy'])
    """

    def loss_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> tuple[Tensor, Aux]:
        inputs, target, weight = batch if len(batch) == 3 else (*batch, None)
        output, buffers = model.apply(params, buffers, inputs, key=key, train=train)
        losses = _per_example(criterion(output, target, reduction="none"), target)
        chosen = _default_metrics(output, target) if metrics is None else metrics
        values = {name: metric(output, target) for name, metric in chosen.items()}
        return losses, Aux(buffers, values, weight)

    return loss_fn


def _per_example(losses: Tensor, target: Tensor) -> Tensor:
    if losses.ndim == 0:
        raise ShapeError(
            "a criterion returns one value for each example",
            f"a 0-d loss for a target of shape {tuple(target.shape)}",
            'let it honour reduction="none"',
        )
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def _default_metrics(output: Tensor, target: Tensor) -> Mapping[str, Metric]:
    classes = target.ndim == 1 and output.ndim == 2 and not target.is_floating_point()
    return {"accuracy": accuracy} if classes else {}


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """One where the highest score is the target's, otherwise zero.

    Args:
        output: Scores, shape (B, C).
        target: Class indices, shape (B,).

    Returns:
        Shape (B,), float32.

    >>> import torch
    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([1., 0.])
    """
    return (output.argmax(-1) == target).to(torch.float32)
