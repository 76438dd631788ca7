"""The words of funcloop: params, buffers, batch, key, losses, estimates, transforms, schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from funcloop._pytree import PyTree, tree_map

#: Trainable tensors: usually a flat `dict[str, Tensor]` by qualified name; any pytree is accepted.
Params: TypeAlias = PyTree
#: Tensors that a forward pass reads and may replace (running statistics, frozen parameters).
Buffers: TypeAlias = PyTree
#: Any pytree of tensors whose leading dimension is the example dimension.
Batch: TypeAlias = PyTree
#: `int64` tensor of shape (2,), each entry a 32-bit word; leading dimensions for a batch of keys.
Key: TypeAlias = Tensor
#: What a transform carries from one update to the next.
OptState: TypeAlias = PyTree
#: Named numbers of a step.
Metrics: TypeAlias = Mapping[str, Tensor]


class Aux(NamedTuple):
    """What a loss function returns beside its losses.

    Attributes:
        buffers: The new buffers.
        metrics: Per-example values by name, each of shape (B,).
        weight: Weight of each example, shape (B,); None means ones. Token counts, masks and class
            weights go here, and every mean is then exact.
    """

    buffers: Buffers
    metrics: Metrics = {}
    weight: Tensor | None = None


class LossFn(Protocol):
    """`(params, buffers, batch, key) -> (losses, Aux)` with `losses` of shape (B,).

    The losses may be returned alone: the buffers are then unchanged, there are no metrics and every
    example weighs one.
    """

    def __call__(
        self, params: Params, buffers: Buffers, batch: Batch, key: Key, /
    ) -> tuple[Tensor, Aux] | Tensor: ...


class Model(Protocol):
    """A module as a pair of pure functions: what `stateless(net)` and its wrappers are."""

    def init(self, key: Key | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Params and buffers: the module's own, or fresh ones from the key."""
        ...

    def apply(
        self,
        params: Params,
        buffers: Buffers,
        *args: Any,
        key: Key | None = None,
        train: bool | Mapping[str, bool],
        **kwargs: Any,
    ) -> tuple[Any, Buffers]:
        """`(output, new_buffers)`."""
        ...


class Estimate(NamedTuple):
    """A gradient estimated from weighted examples; a commutative monoid under `combine`.

    Attributes:
        grads: The weighted mean gradient, with the structure and dtypes of the params.
        loss: The weighted mean loss, 0-d.
        buffers: The new buffers.
        metrics: The weighted mean of each metric, 0-d.
        weight: The total weight, 0-d.
    """

    grads: PyTree
    loss: Tensor
    buffers: Buffers
    metrics: Metrics
    weight: Tensor

    def combine(self, other: Estimate) -> Estimate:
        """The estimate from the examples of both: every mean is weighted by `weight`.

        Buffers are averaged by weight where they are floating, and otherwise the larger one is
        kept. Where neither side weighs anything, gradients, loss and metrics are zero, and buffers
        are the elementwise maximum, so that the result does not depend on the order. An estimate
        without weight never contributes, also not a NaN.

        >>> import torch
        >>> def estimate(grad, weight):
        ...     return Estimate(torch.tensor(grad), torch.tensor(0.0), {}, {}, torch.tensor(weight))
        >>> estimate(10.0, 1.0).combine(estimate(2.0, 3.0)).grads
        tensor(4.)
        """
        total = self.weight + other.weight
        safe = torch.where(total == 0, 1, total)
        mine, theirs = self.weight / safe, other.weight / safe

        def mean(a: Tensor, b: Tensor) -> Tensor:
            return (_share(a, mine) + _share(b, theirs)).to(a.dtype)

        def merge(a: Tensor, b: Tensor) -> Tensor:
            if a is b:
                return a
            if a.is_complex():
                return torch.where(total == 0, a, mean(a, b))
            if not a.is_floating_point():
                return torch.maximum(a, b)
            # Equal ones stay bit-equal: a frozen parameter is not moved by rounding.
            return torch.where((total == 0) | (a == b), torch.maximum(a, b), mean(a, b))

        return Estimate(
            tree_map(mean, self.grads, other.grads),
            mean(self.loss, other.loss),
            tree_map(merge, self.buffers, other.buffers),
            tree_map(mean, self.metrics, other.metrics),
            total,
        )

    @classmethod
    def identity(cls, like: Estimate) -> Estimate:
        """The neutral element: zero gradients and weight, and buffers below every other value."""
        return cls(
            tree_map(torch.zeros_like, like.grads),
            torch.zeros_like(like.loss),
            tree_map(lambda b: torch.full_like(b, _lowest(b.dtype)), like.buffers),
            tree_map(torch.zeros_like, like.metrics),
            torch.zeros_like(like.weight),
        )


def _share(value: Tensor, fraction: Tensor) -> Tensor:
    """`fraction * value` in at least float32; nothing, whatever the value, at fraction zero."""
    wide = torch.promote_types(value.dtype, torch.float32)
    return torch.where(fraction == 0, 0, value.to(wide) * fraction)


def _lowest(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point:
        return float("-inf")
    if dtype is torch.bool or dtype.is_complex:
        return False
    return torch.iinfo(dtype).min


class GradFn(Protocol):
    """`(params, buffers, batch, key) -> Estimate`: what a training method differs in."""

    def __call__(self, params: Params, buffers: Buffers, batch: Batch, key: Key, /) -> Estimate: ...


class Init(Protocol):
    """`params -> opt_state`."""

    def __call__(self, params: Params, /) -> OptState: ...


class Update(Protocol):
    """`(updates, opt_state, params, **extra) -> (updates, opt_state)`."""

    def __call__(
        self, updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]: ...


class Transform(NamedTuple):
    """A gradient transformation: Optax's contract, two pure functions.

    Attributes:
        init: `params -> opt_state`.
        update: `(updates, opt_state, params, **extra) -> (updates, opt_state)`. Updates are what
            `apply_updates` adds to the params. `extra` carries `value=`, the loss, for transforms
            that look at it; the others ignore it.
    """

    init: Init
    update: Update


class Schedule(Protocol):
    """`count -> Tensor`: a hyperparameter as a pure, traceable function of the update count."""

    def __call__(self, count: Tensor, /) -> Tensor: ...
