"""Prototypical networks (Snell et al. 2017, arXiv:1703.05175): the nearest class mean."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from funcloop import random
from funcloop._errors import ArgumentError
from funcloop._types import Aux, Batch, Buffers, Key, Params
from funcloop.meta._statistics import check_statistics, read_only
from funcloop.meta._tasks import MetaGradFn, TaskLoss, over_tasks, query_loss


class Embed(Protocol):
    """`(params, buffers, x, key) -> (embeddings, buffers)`, with embeddings of shape (B, D)."""

    def __call__(
        self, params: Params, buffers: Buffers, x: Batch, key: Key, /
    ) -> tuple[Tensor, Buffers]: ...


class Prototypes(NamedTuple):
    """What a task has become.

    Attributes:
        means: Weighted mean embedding of each class, shape (C, D).
        weight: Total weight of each class, shape (C,); zero for a class without examples, which is
            then never predicted.
        buffers: The task's own buffers.
    """

    means: Tensor
    weight: Tensor
    buffers: Buffers

    def logits(self, embeddings: Tensor) -> Tensor:
        """Negative squared distance to each prototype, shape (B, C)."""
        # Written as a product: (B, C, D) differences would be the largest tensor of the task.
        squares = embeddings.square().sum(-1, keepdim=True) + self.means.square().sum(-1)
        distance = squares - 2 * embeddings @ self.means.T
        return torch.where(self.weight > 0, -distance, -torch.inf)


def protonet(
    embed: Embed, classes: int, *, statistics: str = "transductive", chunk: int | None = None
) -> MetaGradFn:
    """The gradient of the cross-entropy of the query set under prototypes of the support set.

    Both sets of a task are `(x, label)` or `(x, label, weight)` with labels 0..classes-1; examples
    of weight zero are padding.

    Args:
        embed: `(params, buffers, x, key) -> (embeddings (B, D), buffers)`.
        classes: Number of classes of every task.
        statistics: `transductive` or `frozen`, as in `maml`.
        chunk: Tasks that are differentiated at a time.

    Returns:
        A GradFn over tasks with the metric `accuracy`; its `adapt` returns Prototypes.

    Raises:
        ArgumentError: a number or name is out of range.

    >>> def embed(params, buffers, x, key):
    ...     return x * params["scale"], buffers
    >>> grad_fn = protonet(embed, classes=2)
    >>> x, y = torch.tensor([[0.0], [1.0], [4.0], [5.0]]), torch.tensor([0, 0, 1, 1])
    >>> params = {"scale": torch.tensor(1.0)}
    >>> task = grad_fn.adapt(params, {}, (x, y), random.key(0))
    >>> task.means.T, task.logits(torch.tensor([[1.0]]))
    (tensor([[0.5000, 4.5000]]), tensor([[ -0.2500, -12.2500]]))
    """
    if classes < 1:
        raise ArgumentError("a task has at least one class", f"classes={classes}", "give a count")
    check_statistics(statistics, ("transductive", "frozen"))

    def adapt(params: Params, buffers: Buffers, support: Batch, key: Key) -> Prototypes:
        x, label, weight = support if len(support) == 3 else (*support, None)
        embeddings, buffers = embed(params, buffers, x, random.split(key)[0])
        member = F.one_hot(label, classes).to(embeddings.dtype)  # (B, C)
        if weight is not None:
            member = member * weight.to(member.dtype).unsqueeze(-1)
            # What is padding never counts, also not a NaN.
            embeddings = torch.where(weight.unsqueeze(-1) == 0, 0, embeddings)
        total = member.sum(0)
        means = member.T @ embeddings / torch.where(total == 0, 1, total).unsqueeze(-1)
        return Prototypes(means, total, buffers)

    def task(params: Params, buffers: Buffers, support: Batch, query: Batch, key: Key) -> TaskLoss:
        prototypes = adapt(params, buffers, support, key)

        def loss_fn(params: Params, buffers: Buffers, batch: Batch, key: Key) -> tuple[Tensor, Aux]:
            x, label, weight = batch if len(batch) == 3 else (*batch, None)
            embeddings, buffers = embed(params, buffers, x, key)
            logits = prototypes.logits(embeddings)
            hit = (logits.argmax(-1) == label).to(torch.float32)
            losses = F.cross_entropy(logits, label, reduction="none")
            return losses, Aux(buffers, {"accuracy": hit}, weight)

        checked = read_only(loss_fn) if statistics == "frozen" else loss_fn
        start = buffers if statistics == "frozen" else prototypes.buffers
        return query_loss(checked, params, start, query, random.split(key)[1])[0]

    return over_tasks(adapt, task, None, chunk, shared=statistics == "frozen")
