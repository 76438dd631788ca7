"""Differentially private gradients: clip, sum, add noise once, divide (Abadi et al. 2016)."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from funcloop import persample, random, tree
from funcloop._errors import ArgumentError, StructureError
from funcloop._loss import evaluate_loss
from funcloop._purity import no_outer_graph
from funcloop._types import (
    Aux,
    Batch,
    Buffers,
    Estimate,
    Key,
    LossFn,
    Params,
    PyTree,
    Schedule,
)
from funcloop.persample import EngineName
from funcloop.privacy._accountant import Accountant
from funcloop.privacy._adaptive import AdaptiveNorm
from funcloop.privacy._noise import noised_mean
from funcloop.privacy._noised import ONCE_PER_BATCH, check_noise

#: A bound, a schedule of the steps, a norm that finds itself, or a tree of bounds.
MaxNorm: TypeAlias = "float | Tensor | Schedule | AdaptiveNorm | PyTree"


class Private(NamedTuple):
    """Buffers, and what private training carries from step to step; goes into the TrainState.

    Attributes:
        buffers: The model's buffers.
        steps: Logical batches so far, 0-d int64: what an accountant needs to know.
        max_norm: The norm of the next step where it is adaptive, 0-d float32; otherwise None.
    """

    buffers: Buffers
    steps: Tensor
    max_norm: Tensor | None


class DPSGD:
    """What `dp_sgd` returns: a GradFn.

    Attributes:
        once_per_batch: Why no estimator may call it several times for one update; those that would
            (accumulation, all-reduce) refuse a GradFn that has this.
    """

    once_per_batch = ONCE_PER_BATCH

    def __init__(
        self,
        loss_fn: LossFn,
        max_norm: MaxNorm,
        noise_multiplier: float,
        expected_batch_size: float,
        accountant: Accountant | None,
        **options: object,
    ) -> None:
        check_noise(noise_multiplier, expected_batch_size)
        self._loss_fn = _present_or_absent(loss_fn) if options["unit_axis"] is None else loss_fn
        self._max_norm, self._expected, self._options = max_norm, expected_batch_size, options
        self._adaptive = max_norm if isinstance(max_norm, AdaptiveNorm) else None
        self._scheduled = callable(max_norm)
        self._accountant, self._multiplier = accountant, noise_multiplier
        if self._adaptive is not None:
            self._multiplier = self._adaptive.split_noise(noise_multiplier)
            if options["per_layer"]:
                raise ArgumentError(
                    "an adaptive norm is one norm", "per_layer=True", "give per-layer bounds"
                )
        elif not self._scheduled:
            self._clipped(max_norm)  # raises now where an option is wrong

    def init(self, buffers: Buffers) -> Private:
        """Buffers that also count the steps, and hold the norm where it is adaptive."""
        leaves = tree.leaves(buffers)
        device = leaves[0].device if leaves else None
        norm = None
        if self._adaptive is not None:
            norm = torch.tensor(self._adaptive.initial, device=device)
        return Private(buffers, torch.zeros((), dtype=torch.int64, device=device), norm)

    def __call__(self, params: Params, buffers: Buffers, batch: Batch, key: Key) -> Estimate:
        """The Estimate: see `dp_sgd`."""
        state = buffers if isinstance(buffers, Private) else None
        if state is None and (self._adaptive or self._scheduled or self._accountant):
            raise StructureError(
                "a norm that changes and an accountant keep their state in the buffers",
                f"buffers of type {type(buffers).__name__}",
                "begin with buffers = grad_fn.init(buffers)",
            )
        with no_outer_graph():
            clip_key, noise_key, count_key = random.split(key, 3).unbind(0)
            norm = self._norm(state)
            clipped = self._clipped(norm)
            inner = buffers if state is None else state.buffers
            estimate = clipped.unrounded(params, inner, batch, clip_key)
            std = self._multiplier * clipped.sensitivity(params)
            estimate = noised_mean(estimate, params, noise_key, self._expected, std)
            return estimate if state is None else self._advance(estimate, state, count_key)

    def _norm(self, state: Private | None) -> PyTree:
        if self._adaptive is not None:
            assert state is not None
            return state.max_norm
        if callable(self._max_norm):
            assert state is not None
            return self._max_norm(state.steps)
        return self._max_norm

    def _clipped(self, norm: PyTree) -> persample.Clipped:
        return persample.clipped(self._loss_fn, norm, on_nonfinite="skip", **self._options)  # type: ignore[arg-type]  # as given

    def _advance(self, estimate: Estimate, state: Private, key: Key) -> Estimate:
        """Count the step, move the norm, and report both."""
        norm, metrics = state.max_norm, dict(estimate.metrics)
        if self._adaptive is not None:
            assert norm is not None
            metrics["max_norm"] = norm
            unclipped = (1 - metrics["clipped"]) * estimate.weight
            norm = self._adaptive.step(norm, unclipped, self._expected, key).to(norm.dtype)
        after = Private(estimate.buffers, state.steps + 1, norm)
        if self._accountant is not None:
            metrics["epsilon"] = self._accountant.bound(after.steps)
        return estimate._replace(buffers=after, metrics=metrics)


def dp_sgd(
    loss_fn: LossFn,
    *,
    max_norm: MaxNorm,
    noise_multiplier: float,
    expected_batch_size: float,
    per_layer: bool = False,
    microbatch: int | None = None,
    unit_axis: int | None = None,
    engine: EngineName = "auto",
    accountant: Accountant | None = None,
) -> DPSGD:
    """The gradient of DP-SGD: `(sum_n clip(g_n) + noise) / expected_batch_size`.

    The noise is `N(0, (noise_multiplier * sensitivity)^2)` on every number, drawn once a call from
    the key, whatever `microbatch` is. The guarantee holds for batches of `poisson_batches`, each
    example in a batch with the same probability, and for adding or removing one example (one unit,
    with `unit_axis`). The loss and the metrics of the Estimate are not private.

    Args:
        loss_fn: Losses of shape (B,). An example of weight zero is absent; any other weight
            multiplies its loss before clipping, so no weight can raise the bound. An example whose
            loss or gradient is not finite is left out.
        max_norm: The clipping norm: a number, a schedule of the steps, `adaptive_norm(...)`, or
            with `per_layer` a tree of bounds.
        noise_multiplier: Standard deviation of the noise in units of the sensitivity, which is
            `max_norm`; with `per_layer` the root of the sum of all squared bounds, so sqrt(8) times
            as much noise on every tensor for eight tensors of one bound.
        expected_batch_size: Sampling probability times number of examples; never the size of the
            batch at hand, which is private.
        per_layer: Clip each tensor on its own.
        microbatch: At most so many examples at a time; the result is the same.
        unit_axis: See `persample.clipped`: what is protected is then a unit, such as a user.
        engine: See `persample.clipped`.
        accountant: Adds the metric `epsilon`, what has been spent after this step.

    Returns:
        A GradFn. Where the norm changes or there is an accountant, it keeps its state in the
        buffers: begin with `buffers = grad_fn.init(buffers)`; the model's own are
        `state.buffers.buffers`.

    Raises:
        ArgumentError: an option is out of range.

    >>> import torch
    >>> def loss_fn(params, buffers, batch, key):
    ...     return batch @ params
    >>> grad_fn = dp_sgd(loss_fn, max_norm=1.0, noise_multiplier=0.0, expected_batch_size=2)
    >>> batch = torch.tensor([[6.0, 8.0], [0.0, 1.0]])
    >>> grad_fn(torch.zeros(2), {}, batch, random.key(0)).grads
    tensor([0.3000, 0.9000])
    """
    return DPSGD(
        loss_fn,
        max_norm,
        noise_multiplier,
        expected_batch_size,
        accountant,
        per_layer=per_layer,
        microbatch=microbatch,
        unit_axis=unit_axis,
        engine=engine,
    )


def _present_or_absent(loss_fn: LossFn) -> LossFn:
    """The same losses times their weights, each example with weight zero or one."""

    def weighted_loss(
        params: Params, buffers: Buffers, batch: Batch, key: Key
    ) -> tuple[Tensor, Aux]:
        losses, aux = evaluate_loss(loss_fn, params, buffers, batch, key)
        if aux.weight is None:
            return losses, aux
        present = aux.weight != 0
        scaled = torch.where(present, losses * aux.weight, 0).to(losses.dtype)
        return scaled, aux._replace(weight=present.to(losses.dtype))

    return weighted_loss
