"""The mean of clipped per-sample gradients (Abadi et al. 2016, arXiv 1607.00133)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError, StructureError
from funcloop._loss import weighted_mean
from funcloop._purity import no_outer_graph
from funcloop._sum import combine_all
from funcloop._types import Batch, Buffers, Estimate, Key, LossFn, Metrics, Params
from funcloop.persample._bound import Bound, MaxNorm
from funcloop.persample._clip import clip_factors, root
from funcloop.persample._counted import Counted
from funcloop.persample._engine import Units, weights_of_units
from funcloop.persample._engines import EngineName, engine_of, in_chunks
from funcloop.persample._nonfinite import refuse_nonfinite
from funcloop.persample._numbers import sum_of

OnNonfinite: TypeAlias = Literal["propagate", "skip", "raise"]
Weight: TypeAlias = Literal["outside", "inside"]


class Clipped:
    """What `clipped` returns: a GradFn with the bound it keeps.

    Attributes:
        unit_axis: As given to `clipped`; accumulation looks at it, lest it cut a unit in two.
        per_example: Metrics in which each example counts once: what puts parts together averages
            them by the number of examples, since a part that was skipped weighs nothing.
    """

    per_example = ("nonfinite",)

    def __init__(
        self,
        loss_fn: LossFn,
        max_norm: MaxNorm,
        engine: EngineName,
        per_layer: bool,
        normalize: bool,
        weight: Weight,
        unit_axis: int | None,
        microbatch: int | None,
        on_nonfinite: OnNonfinite,
    ) -> None:
        self._loss_fn, self._engine = loss_fn, engine_of(engine)
        self._per_layer, self._normalize = per_layer, normalize
        self._inside = _choice("weight", weight, ("outside", "inside")) == "inside"
        self.unit_axis, self._microbatch = unit_axis, microbatch
        self._on_nonfinite = _choice("on_nonfinite", on_nonfinite, ("propagate", "skip", "raise"))
        self._bound = Bound(max_norm, per_layer)

    def init(self, buffers: Buffers) -> Buffers:
        """The buffers to begin with: with a count where `max_norm` is a schedule, else as given."""
        if not self._bound.scheduled:
            return buffers
        leaves = tree.leaves(buffers)
        device = leaves[0].device if leaves else None
        return Counted(buffers, torch.zeros((), dtype=torch.int64, device=device))

    def sensitivity(self, params: Params = None, count: Tensor | None = None) -> float | Tensor:
        """The largest L2 norm that one unit can have in the sum of the clipped gradients.

        Adding or removing one unit of weight at most one moves `estimate.grads * estimate.weight`
        by no more than this; Gaussian noise is calibrated to it. It is `max_norm`; with `per_layer`
        the root of the sum of the squared bounds of all tensors, sqrt(8) for eight of bound one.

        Args:
            params: The parameters; needed where `per_layer` gives all of them one bound.
            count: The number of the call; needed where `max_norm` is a schedule.

        Raises:
            ArgumentError: what is needed is not given.
        """
        return self._bound.joint(params, count)

    def __call__(self, params: Params, buffers: Buffers, batch: Batch, key: Key) -> Estimate:
        """The Estimate: see `clipped`."""
        estimate = self.unrounded(params, buffers, batch, key)
        return estimate._replace(grads=tree.map(lambda g, p: g.to(p.dtype), estimate.grads, params))

    def unrounded(self, params: Params, buffers: Buffers, batch: Batch, key: Key) -> Estimate:
        """The same with gradients in at least float32.

        To noise is to be added before the sum is rounded: in bfloat16, one example more can move a
        rounded sum by many times its own norm.
        """
        count = None
        if self._bound.scheduled:
            if not isinstance(buffers, Counted):
                raise StructureError(
                    "a scheduled max_norm counts its calls in the buffers",
                    f"buffers of type {type(buffers).__name__}",
                    "begin with buffers = grad_fn.init(buffers)",
                )
            buffers, count = buffers
        bounds = self._bound.each(params, count) or [1.0]  # there is nothing to bound
        seen: list[tuple[Tensor, Buffers]] = []

        def estimates() -> Iterator[Estimate]:
            for units in self._chunks(params, buffers, batch, key):
                estimate, finite = self._estimate(units, params, bounds)
                seen.append((finite, units.buffers))
                yield estimate

        with no_outer_graph():
            estimate = combine_all(estimates())
            finite = torch.cat([finite for finite, _ in seen])
        if self._on_nonfinite == "raise":
            refuse_nonfinite(finite)
        after = seen[-1][1]  # no example has a say in them, so they are all the same
        if count is not None:
            after = Counted(after, count + 1)
        lost = {"nonfinite": (~finite).to(estimate.weight.dtype).mean()}
        return estimate._replace(buffers=after, metrics=_join(estimate.metrics, lost))

    def _chunks(self, params: Params, buffers: Buffers, batch: Batch, key: Key) -> Iterator[Units]:
        return in_chunks(
            self._engine,
            self._loss_fn,
            params,
            buffers,
            batch,
            key,
            self.unit_axis,
            self._microbatch,
        )

    def _estimate(
        self, units: Units, params: Params, bounds: list[float | Tensor]
    ) -> tuple[Estimate, Tensor]:
        """The Estimate of some units, and which of them are finite, (B,)."""
        weight = weights_of_units(units)
        squares = [gradient.squared_norm().to(weight.dtype) for gradient in units.gradients]
        total = sum_of(squares) if squares else torch.zeros_like(weight)
        scale = weight if self._inside else torch.ones_like(weight)
        norms = [root(s) for s in (squares if self._per_layer and squares else [total])]
        finite = (total.isfinite() & units.losses.isfinite()) | (weight == 0)
        if self._on_nonfinite == "skip":
            weight = torch.where(finite, weight, 0)
        factors = [
            clip_factors(norm * scale, bound, self._normalize)
            for norm, bound in zip(norms, bounds, strict=True)
        ]
        sum_of_weights = weight.sum()
        share = weight / torch.where(sum_of_weights == 0, 1, sum_of_weights)
        coefficients = [torch.where(weight == 0, 0, share * factor) for factor in factors]
        if len(coefficients) != len(squares):
            coefficients = coefficients * len(squares)
        mask = units.weight is not None or self._on_nonfinite == "skip"
        grads = [g.weighted(c, mask) for g, c in zip(units.gradients, coefficients, strict=True)]
        metrics = {name: weighted_mean(value, weight) for name, value in units.metrics.items()}
        cut = sum_of([(factor < 1).to(weight.dtype) for factor in factors]) / len(factors)
        estimate = Estimate(
            tree.unflatten(tree.structure(params), grads),
            weighted_mean(units.losses, weight),
            units.buffers,
            _join(metrics, {"clipped": weighted_mean(cut, weight)}),
            sum_of_weights,
        )
        return estimate, finite


def _join(metrics: Metrics, own: Metrics) -> Metrics:
    if clash := sorted(own.keys() & metrics.keys()):
        raise StructureError(
            "a clipped gradient reports how much was clipped and what was not finite",
            f"the loss function has metrics {clash}",
            "give them other names",
        )
    return {**metrics, **own}


def clipped(
    loss_fn: LossFn,
    max_norm: MaxNorm,
    *,
    engine: EngineName = "auto",
    per_layer: bool = False,
    normalize: bool = False,
    weight: Weight = "outside",
    unit_axis: int | None = None,
    microbatch: int | None = None,
    on_nonfinite: OnNonfinite = "propagate",
) -> Clipped:
    """The weighted mean of per-sample gradients, each first scaled down to `max_norm`.

    `grads = sum(w_n * min(1, max_norm / |g_n|) * g_n) / sum(w_n)`, where `g_n` is the gradient of
    example n over all parameters, and `w_n` its weight. With the ghost engine it costs about as
    much as the plain gradient, and no per-sample gradient is held.

    Args:
        loss_fn: Losses of shape (B,). It is called with batches of one example (under vmap), so an
            example cannot see another; `check_independence` says whether it tries to.
        max_norm: The bound: a number, a 0-d tensor, or a schedule. A schedule counts the calls in
            the buffers: begin with `buffers = grad_fn.init(buffers)`. With `per_layer`, also a tree
            with a bound for each parameter.
        engine: `auto`, `ghost`, `vmap` or `loop`; `explain` says what `auto` does.
        per_layer: Bound the gradient of each tensor on its own. The sensitivity is then larger.
        normalize: Scale every gradient to `max_norm` exactly, also the short ones; zero stays zero.
        weight: `outside`: the weight multiplies the clipped gradient. `inside`: it multiplies the
            loss, and what is clipped is `w_n * g_n`; the sum is then divided by `sum(w_n)` as well,
            and an example moves it by no more than `max_norm` whatever its weight.
        unit_axis: None clips each example. An axis of every leaf of the batch that counts units,
            such as users: what remains of a leaf has the unit's examples in its first dimension,
            and the gradient of the unit's mean loss is clipped.
        microbatch: At most so many units at a time; the result is the same.
        on_nonfinite: What a NaN or an infinity in an example's gradient or loss does. `propagate`:
            what it would do in a plain gradient. `skip`: the example has weight zero. `raise`:
            NonFiniteError names the examples (in eager mode only).

    Returns:
        A GradFn with `sensitivity`, the bound on what one unit can add to the sum. Beside the loss
        function's metrics there are `clipped`, the fraction of the weight that was scaled down, and
        `nonfinite`, the fraction of the examples that are not finite, whatever they weigh.

    Raises:
        ShapeError: the losses are averaged already.
        UnsupportedError: examples depend on each other (batch normalisation in training mode), or
            vmap cannot run the loss function.
        ArgumentError: an option is out of range.

    >>> import torch
    >>> def loss_fn(params, buffers, batch, key):
    ...     return batch @ params["w"]
    >>> grad_fn = clipped(loss_fn, max_norm=1.0)
    >>> batch = torch.tensor([[6.0, 8.0], [0.0, 1.0]])
    >>> grad_fn({"w": torch.zeros(2)}, {}, batch, None).grads
    {'w': tensor([0.3000, 0.9000])}
    """
    return Clipped(
        loss_fn,
        max_norm,
        engine,
        per_layer,
        normalize,
        weight,
        unit_axis,
        microbatch,
        on_nonfinite,
    )


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ArgumentError(f"{name}= is one of {list(choices)}", repr(value), "choose one of them")
    return value
