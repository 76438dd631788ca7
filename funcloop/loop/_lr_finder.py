"""The learning-rate range test: Smith (2015), "Cyclical learning rates", arXiv:1506.01186."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError, NonFiniteError, StructureError
from funcloop._types import Batch, Metrics
from funcloop.loop._epochs import Epochs
from funcloop.loop._probe import batches_forever, copied, randomness_put_back

State = TypeVar("State")
#: Weight of the past in the moving average of the losses.
SMOOTHING = 0.98
#: The sweep ends where the smoothed loss has risen by this many times its best value.
RISE = 3.0


class RateSweep(NamedTuple):
    """What `lr_finder` returns; `plot_sweep` draws it.

    Attributes:
        rates: The learning rates tried, ascending.
        losses: The loss of the step that used each rate, before its update took effect.
        smoothed: Their moving average, bias-corrected.
        suggestion: The rate around which the losses fall steepest over the logarithm of the rate,
            by lines fitted to a fifth of the sweep each, up to the lowest fifth; None where they
            never fall.
        diverged_at: The rate that ended the sweep early; its loss is not listed if it was not
            finite. None where all rates were tried.
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    suggestion: float | None
    diverged_at: float | None


def lr_finder(
    state: State,
    make_step: Callable[[Tensor], Callable[[State, Any], tuple[State, Metrics]]],
    data: Iterable[Batch] | Epochs,
    lr_min: float = 1e-6,
    lr_max: float = 1e-1,
    steps: int = 100,
) -> RateSweep:
    """Train for a few steps with ever larger learning rates, and see where the loss falls.

    The rates form a geometric grid with both ends exact. The sweep ends where a loss is not finite
    or the smoothed loss has risen to four times its best. Nothing is left to restore: the state is
    a value, of which the sweep trains a copy, and the generators of Python, NumPy, torch and a
    DataLoader are put back.

    Args:
        state: Where the sweep starts; it stays as it is, also if the step donates its argument.
        make_step: From a learning rate (0-d float64 tensor on the state's device) to a step. The
            state must fit: an optimizer made with a tensor has the state of one made with a number.
        data: Batches as for `fit`; read again from the beginning where they are too few.
        lr_min: The lowest rate, positive.
        lr_max: The highest.
        steps: The number of rates, at least two.

    Returns:
        A RateSweep: rates, losses, smoothed losses, suggestion.

    Raises:
        ArgumentError: the range or the number of steps is none, or the data are empty or can be
            read only once.
        NonFiniteError: already the first loss is not finite.
        StructureError: the step reports no loss.

    A rate is an argument and never re-traces; one graph serves the sweep:

    >>> from functools import partial
    >>> from funcloop import compile, estimators, optim, random, step
    >>> grad_fn = estimators.value_and_grad(lambda params, buffers, x, key: (params["w"] - x) ** 2)
    >>> trained = compile.jit(
    ...     lambda lr, state, x: step.train_step(grad_fn, optim.sgd(lr))(state, x),
    ...     backend="aot_eager")
    >>> params = {"w": torch.tensor(3.0)}
    >>> state = step.TrainState.create(params, {}, optim.sgd(0.1), key=random.key(0))
    >>> sweep = lr_finder(state, lambda lr: partial(trained, lr), [torch.zeros(2)], 1e-4, 1.0, 5)
    >>> [f"{rate:g}" for rate in sweep.rates], trained.traces
    (['0.0001', '0.001', '0.01', '0.1', '1'], 1)
    """
    if not (0 < lr_min < lr_max < math.inf and steps >= 2):
        raise ArgumentError(
            "a sweep goes up from a positive rate, in two steps or more",
            f"lr_min={lr_min}, lr_max={lr_max}, steps={steps}",
            "choose 0 < lr_min < lr_max",
        )
    grid = [float(rate) for rate in np.geomspace(lr_min, lr_max, steps)]
    rates: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []
    diverged_at = None
    with randomness_put_back(data):
        for rate, loss in zip(grid, _losses(state, make_step, data, grid), strict=False):
            if math.isfinite(loss):
                rates.append(rate)
                losses.append(loss)
                smoothed = smooth(losses)
            if not math.isfinite(loss) or _has_risen(smoothed):
                diverged_at = rate
                break
    if not losses:
        raise NonFiniteError(
            "a sweep starts from a finite loss",
            "it is infinite or NaN at the first batch",
            "look at the model and the data: no update was made yet",
        )
    return RateSweep(rates, losses, smoothed, _steepest(rates, losses), diverged_at)


def smooth(losses: list[float]) -> list[float]:
    """The exponential moving average, divided by the weight it has gathered: no bias to zero.

    >>> [round(value, 6) for value in smooth([4.0, 2.0, 2.0])]
    [4.0, 2.989899, 2.653244]
    """
    average, averages = 0.0, []
    for count, loss in enumerate(losses, 1):
        # As a step towards the loss: a constant loss stays constant to the last bit.
        average += (loss - average) * (1 - SMOOTHING) / (1 - SMOOTHING**count)
        averages.append(average)
    return averages


def _losses(
    state: State,
    make_step: Callable[[Tensor], Callable[[State, Any], tuple[State, Metrics]]],
    data: Iterable[Batch] | Epochs,
    grid: list[float],
) -> Iterator[float]:
    """The loss of the step made with each rate, from the state that the steps before left."""
    state = copied(state)
    device = next((x.device for x in tree.leaves(state) if isinstance(x, Tensor)), None)
    for rate, batch in zip(grid, batches_forever(data), strict=False):
        lr = torch.tensor(rate, dtype=torch.float64, device=device)
        state, metrics = make_step(lr)(state, batch)
        if "loss" not in metrics:
            raise StructureError(
                "a step reports its loss", f"it has {sorted(metrics)}", "name one metric `loss`"
            )
        yield float(metrics["loss"])


def _has_risen(smoothed: list[float]) -> bool:
    best = min(smoothed)
    return smoothed[-1] > best + RISE * abs(best)


def _steepest(rates: list[float], losses: list[float]) -> float | None:
    """The rate around which a line through a fifth of the losses falls steepest.

    Lines through the smoothed curve would chase its first points, which are hardly smoothed yet.
    After the lowest fifth a loss that falls is only coming down from a jump.
    """
    width = max(3, len(losses) // 5 | 1)
    if len(losses) < width:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(np.array(losses), width)
    places = np.arange(width) - width // 2
    slopes = (windows - windows[:, :1]) @ places  # the grid is even in the logarithm of the rate
    lowest = int(windows.mean(1).argmin())
    steepest = int(slopes[: lowest + 1].argmin())
    return rates[steepest + width // 2] if slopes[steepest] < 0 else None
