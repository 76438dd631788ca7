"""What a run of DP-SGD costs, by Google's dp-accounting: epsilon, and noise for an epsilon."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from funcloop._errors import ArgumentError, import_extra

#: `pld`: privacy loss distributions, tight. `rdp`: Renyi divergences, fast and a little loose.
Method: TypeAlias = Literal["pld", "rdp"]
#: How far a calibrated noise multiplier may lie above the smallest one.
_TOLERANCE = 1e-6


def epsilon(
    *,
    noise_multiplier: float,
    sampling_probability: float,
    steps: int,
    delta: float,
    method: Method = "pld",
    orders: Sequence[float] | None = None,
) -> float:
    """The epsilon of `steps` noised sums over Poisson samples, for adding or removing one example.

    What dp-accounting gives for the same mechanism, called directly.

    Args:
        noise_multiplier: Standard deviation of the noise in units of the sensitivity.
        sampling_probability: Of each example in each step; one means no subsampling. It follows
            from the data set (`sampling_probability(...)`), never from a sampler or a loader.
        steps: How many.
        delta: The probability that may be left over.
        method: `pld` is tight and can be slow for many thousand steps; `rdp` is fast.
        orders: Renyi orders, for `rdp`; dp-accounting's own by default.

    Raises:
        ArgumentError: a number is out of range.
        MissingExtraError: dp-accounting is not installed.

    >>> run = dict(noise_multiplier=3.0, sampling_probability=0.2, steps=50, delta=1 / 48000)
    >>> round(epsilon(**run), 4), round(epsilon(**run, method="rdp"), 4)
    (1.9608, 2.169)
    """
    _check(sampling_probability, steps, delta, method)
    if noise_multiplier < 0:
        raise ArgumentError("noise_multiplier is not negative", str(noise_multiplier), "correct it")
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    ledger = _accountant(method, orders)
    ledger.compose(_event(noise_multiplier, sampling_probability, steps))
    return float(ledger.get_epsilon(delta))


def calibrate_noise(
    target_epsilon: float,
    *,
    delta: float,
    sampling_probability: float,
    steps: int,
    method: Method = "pld",
) -> float:
    """The smallest noise multiplier with which the run stays within an epsilon.

    Args:
        target_epsilon: The budget.
        delta: The probability that may be left over.
        sampling_probability: See `epsilon`.
        steps: How many.
        method: See `epsilon`.

    Returns:
        The multiplier, to 1e-6, on the safe side.

    Raises:
        ArgumentError: a number is out of range.
        MissingExtraError: dp-accounting is not installed.

    >>> noise = calibrate_noise(
    ...     2.0, delta=1e-5, sampling_probability=0.01, steps=100, method="rdp")
    >>> spent = epsilon(noise_multiplier=noise, sampling_probability=0.01, steps=100, delta=1e-5,
    ...                 method="rdp")
    >>> 1.99 < spent <= 2.0
    True
    """
    _check(sampling_probability, steps, delta, method)
    if not target_epsilon > 0 or steps < 1:
        raise ArgumentError(
            "noise is calibrated to an epsilon above zero over at least one step",
            f"{target_epsilon=}, {steps=}",
            "correct it",
        )

    with _quiet():
        return _calibrate(target_epsilon, delta, sampling_probability, steps, method)


def _calibrate(
    target_epsilon: float, delta: float, probability: float, steps: int, method: Method
) -> float:
    def spent(noise: float) -> float:
        ledger = _accountant(method, None)
        ledger.compose(_event(noise, probability, steps))
        return float(ledger.get_epsilon(delta))

    high = 1.0
    while spent(high) > target_epsilon:
        high *= 2
    low = high / 2
    while spent(low) <= target_epsilon:
        low, high = low / 2, low
    accounting = import_extra("dp_accounting", "privacy")
    noise = accounting.calibrate_dp_mechanism(
        lambda: _accountant(method, None),
        lambda noise: _event(noise, probability, steps),
        target_epsilon,
        delta,
        accounting.ExplicitBracketInterval(low, high),
        tol=_TOLERANCE / 2,
    )
    while spent(noise) > target_epsilon:  # it may stop on either side
        noise += _TOLERANCE / 2
    return float(noise)


def epsilons(
    noise_multiplier: float,
    probability: float,
    counts: Sequence[int],
    delta: float,
    method: Method,
) -> list[float]:
    """`epsilon` for several numbers of steps; with `rdp`, one step is analysed once for all."""
    if method == "pld" or noise_multiplier == 0:
        return [
            epsilon(
                noise_multiplier=noise_multiplier,
                sampling_probability=probability,
                steps=n,
                delta=delta,
                method=method,
            )
            for n in counts
        ]
    one = _accountant("rdp", None)
    one.compose(_event(noise_multiplier, probability, 1))
    convert = import_extra("dp_accounting", "privacy").rdp.compute_epsilon
    return [float(convert(one.orders, n * one.rdp, delta)[0]) if n else 0.0 for n in counts]


def sampling_probability(expected_batch_size: float, examples: int) -> float:
    """The probability with which each example is in a batch: from the data set, not from a loader.

    >>> sampling_probability(16, 100_000)
    0.00016

    Raises:
        ArgumentError: it is not in (0, 1].
    """
    if not 0 < expected_batch_size <= examples:
        raise ArgumentError(
            "a batch is expected to have at least no and at most all examples",
            f"{expected_batch_size} of {examples}",
            "correct it",
        )
    return expected_batch_size / examples


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings about Renyi orders that are left out for trial values of the noise."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check(probability: float, steps: int, delta: float, method: str) -> None:
    if not 0 < probability <= 1:
        raise ArgumentError("a sampling probability is in (0, 1]", str(probability), "correct it")
    if steps < 0:
        raise ArgumentError("steps are counted from zero", str(steps), "correct it")
    if not 0 < delta < 1:
        raise ArgumentError("delta is in (0, 1)", str(delta), "well below one over the examples")
    if method not in ("pld", "rdp"):
        raise ArgumentError("method= is pld or rdp", repr(method), "choose one")


def _accountant(method: Method, orders: Sequence[float] | None) -> Any:
    accounting = import_extra("dp_accounting", "privacy")
    neighbours = accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    if method == "rdp":
        return accounting.rdp.RdpAccountant(orders and list(orders), neighbours)
    return accounting.pld.PLDAccountant(neighbours)


def _event(noise_multiplier: float, probability: float, steps: int) -> Any:
    accounting = import_extra("dp_accounting", "privacy")
    event = accounting.GaussianDpEvent(noise_multiplier)
    if probability < 1:
        event = accounting.PoissonSampledDpEvent(probability, event)
    return accounting.SelfComposedDpEvent(event, steps)
