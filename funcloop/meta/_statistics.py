"""What becomes of buffers (BatchNorm statistics, counters, averages) while a task is learned."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError, ShapeError, UnsupportedError
from funcloop._loss import weighted_mean
from funcloop._types import Aux, Batch, Buffers, Key, LossFn, Params

#: How buffers flow; see `maml`.
Statistics: TypeAlias = Literal["transductive", "frozen", "per_step"]


def check_statistics(statistics: str, allowed: tuple[str, ...] = get_args(Statistics)) -> None:
    """Refuse an unknown name.

    Raises:
        ArgumentError: it is.
    """
    if statistics not in allowed:
        raise ArgumentError(
            f"statistics= is one of {', '.join(allowed)}", repr(statistics), "choose one of them"
        )


def per_step_buffers(buffers: Buffers, steps: int) -> Buffers:
    """Buffers for `statistics="per_step"`: one copy for each inner step and one for the query.

    >>> per_step_buffers({"mean": torch.zeros(3)}, steps=5)["mean"].shape
    torch.Size([6, 3])
    """
    return tree.map(lambda b: b.expand(steps + 1, *b.shape).clone(), buffers)


def slots(buffers: Buffers, steps: int) -> list[Buffers]:
    """The buffers of each step and of the query.

    Raises:
        ShapeError: a leaf has another leading dimension.
    """
    for path, leaf in tree.items(buffers):
        if leaf.ndim == 0 or len(leaf) != steps + 1:
            raise ShapeError(
                'statistics="per_step" takes buffers with one entry for each inner step and one '
                "for the query",
                f"{path} has shape {tuple(leaf.shape)} for {steps} steps",
                "make them with per_step_buffers(buffers, steps)",
            )
    return tree.unstack(buffers) if tree.leaves(buffers) else [buffers] * (steps + 1)


def read_only(loss_fn: LossFn) -> LossFn:
    """The loss function, refused where it writes a buffer.

    Raises:
        UnsupportedError: at the call, where it does.
    """

    def checked(
        params: Params, buffers: Buffers, batch: Batch, key: Key
    ) -> tuple[Tensor, Aux] | Tensor:
        result = loss_fn(params, buffers, batch, key)
        after = result[1].buffers if isinstance(result, tuple) else buffers
        rows = tree.flatten_like(tree.structure(buffers), after, "buffers")
        for (path, before), now in zip(tree.items(buffers), rows, strict=True):
            if now is not before:
                raise UnsupportedError(
                    'statistics="frozen" reads buffers and never writes them',
                    f"the loss function writes {path}",
                    "evaluate these modules with train=False, or choose other statistics",
                )
        return result

    return checked


def mean_over_tasks(buffers: Buffers, weight: Tensor, before: Buffers) -> Buffers:
    """Floating buffers averaged over the leading task dimension, otherwise the largest value.

    Where no task weighs anything they stay what they were before.
    """

    def merge(tasks: Tensor, old: Tensor) -> Tensor:
        if not (tasks.is_floating_point() or tasks.is_complex()):
            counted = weight.reshape(-1, *[1] * old.ndim) > 0
            # An unweighted task has seen padding only, and its counters do not count.
            return torch.where(counted, tasks, old).amax(0)
        flat = tasks.reshape(len(tasks), -1)
        mean = torch.func.vmap(weighted_mean, (1, None))(flat, weight)
        mean = mean.reshape(old.shape).to(old.dtype)
        return torch.where(weight.sum() == 0, old, mean)

    return tree.map(merge, buffers, before)
