"""Noise around any gradient whose sum has bounded sensitivity."""

from __future__ import annotations

from torch import Tensor

from funcloop import random
from funcloop._errors import ArgumentError
from funcloop._purity import no_outer_graph
from funcloop._types import Batch, Buffers, Estimate, GradFn, Key, Params
from funcloop.privacy._noise import noised_mean

#: What a private GradFn says to estimators that would call it several times for one update.
ONCE_PER_BATCH = "noise enters once for a logical batch: accumulate and reduce inside of it"


class Noised:
    """What `noised` returns: a GradFn.

    Attributes:
        once_per_batch: Why no estimator may call it several times for one update; those that would
            (accumulation, all-reduce) refuse a GradFn that has this.
    """

    once_per_batch = ONCE_PER_BATCH

    def __init__(
        self,
        grad_fn: GradFn,
        std_of_unit: float,
        expected: float,
        sensitivity: float | Tensor | None,
    ) -> None:
        self._grad_fn, self._multiplier, self._expected = grad_fn, std_of_unit, expected
        self._sensitivity = sensitivity

    def __call__(self, params: Params, buffers: Buffers, batch: Batch, key: Key) -> Estimate:
        """The Estimate: see `noised`."""
        sensitivity = self._sensitivity
        if sensitivity is None:
            sensitivity = self._grad_fn.sensitivity(params)  # type: ignore[attr-defined]  # checked
        with no_outer_graph():
            clip_key, noise_key = random.split(key).unbind(0)
            inner = getattr(self._grad_fn, "unrounded", self._grad_fn)
            estimate = inner(params, buffers, batch, clip_key)
            std = self._multiplier * sensitivity
            return noised_mean(estimate, params, noise_key, self._expected, std)


def noised(
    grad_fn: GradFn,
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    sensitivity: float | Tensor | None = None,
) -> GradFn:
    """Add noise, once a call, to the sum of the gradients that `grad_fn` returns the mean of.

    For compositions that `dp_sgd` does not make itself: noise outside, accumulation or all-reduce
    inside, clipping innermost.

    Args:
        grad_fn: `estimate.grads * estimate.weight` is a sum in which one example has a norm of no
            more than `sensitivity`.
        noise_multiplier: Standard deviation of the noise in units of the sensitivity.
        expected_batch_size: What the noised sum is divided by.
        sensitivity: By default what `grad_fn` states, as `persample.clipped` does.

    Raises:
        ArgumentError: a number is out of range, or no sensitivity is known.

    >>> import torch
    >>> from funcloop import persample
    >>> clipped = persample.clipped(lambda params, buffers, x, key: x @ params, max_norm=1.0)
    >>> grad_fn = noised(clipped, noise_multiplier=0.0, expected_batch_size=4)
    >>> grad_fn(torch.zeros(2), {}, torch.tensor([[3.0, 4.0]]), random.key(0)).grads
    tensor([0.1500, 0.2000])
    """
    check_noise(noise_multiplier, expected_batch_size)
    if hasattr(grad_fn, "once_per_batch"):
        raise ArgumentError(
            "a gradient is noised once", ONCE_PER_BATCH, "give the clipped gradient inside"
        )
    if sensitivity is None and not hasattr(grad_fn, "sensitivity"):
        raise ArgumentError(
            "noise is calibrated to the sensitivity of the sum",
            "a gradient function that does not state one",
            "pass sensitivity=, that of the clipped gradient inside",
        )
    return Noised(grad_fn, noise_multiplier, expected_batch_size, sensitivity)


def check_noise(noise_multiplier: float, expected_batch_size: float) -> None:
    """Raises ArgumentError unless both are in range."""
    if not noise_multiplier >= 0:
        raise ArgumentError("noise_multiplier is not negative", str(noise_multiplier), "correct it")
    if not expected_batch_size > 0:
        raise ArgumentError(
            "expected_batch_size is positive",
            str(expected_batch_size),
            "give the sampling probability times the number of examples",
        )
