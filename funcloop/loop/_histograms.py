"""How the numbers of a tree are distributed, leaf by leaf, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from funcloop import random, tree
from funcloop._types import Batch, GradFn, PyTree
from funcloop.step import TrainState

#: Counts and statistics of one leaf, in JSON's types.
Histogram: TypeAlias = dict[str, Any]
BINS = 61
#: Bins lie within this many standard deviations of the mean; the outermost hold all beyond.
REACH = 4.0
#: A sharded tensor would have to be gathered by all ranks, and only one draws.
_PLAIN = (Tensor, torch.nn.Parameter)


def watch_gradients(grad_fn: GradFn, batch: Batch) -> Callable[[TrainState], dict[str, PyTree]]:
    """`watch=` of `fit`: the weights, and the gradient of one batch at them.

    The batch is the same each time, so that two pictures of one run can be compared.

    Args:
        grad_fn: Any gradient estimator, e.g. `value_and_grad(loss_fn)`.
        batch: The batch to differentiate on.

    Returns:
        A function from a TrainState to `{"weights": params, "gradients": grads}`.

    >>> from funcloop import estimators, optim
    >>> grad_fn = estimators.value_and_grad(lambda params, buffers, x, key: params["w"] * x)
    >>> params = {"w": torch.tensor(1.0)}
    >>> state = TrainState.create(params, {}, optim.sgd(0.1), key=random.key(0))
    >>> watch_gradients(grad_fn, torch.tensor([1.0, 3.0]))(state)
    {'weights': {'w': tensor(1.)}, 'gradients': {'w': tensor(2.)}}
    """

    def watch(state: TrainState) -> dict[str, PyTree]:
        key = random.fold_in(state.key, state.step)
        grads = grad_fn(state.params, state.buffers, batch, key).grads
        return {"weights": state.params, "gradients": grads}

    return watch


def histograms(trees: Mapping[str, PyTree]) -> dict[str, dict[str, Histogram]]:
    """By the name of a tree and the path of a leaf, its Histogram; plain floating leaves only.

    A histogram has `shape`, `low` and `high` (the outer edges), `counts` (61), `mean`, `std`,
    `min`, `max`, `zeros` (a share of all) and `nonfinite` (how many; no other entry has them).

    >>> found = histograms({"weights": {"w": torch.tensor([1.0, 3.0, float("nan")])}})
    >>> w = found["weights"]["w"]
    >>> w["mean"], w["nonfinite"], sum(w["counts"])
    (2.0, 1, 2)
    """
    return {
        name: {
            path: _histogram(leaf)
            for path, leaf in tree.items(values)
            if type(leaf) in _PLAIN and leaf.numel() and not _is_whole(leaf)
        }
        for name, values in trees.items()
    }


def _is_whole(leaf: Tensor) -> bool:
    return not (leaf.is_floating_point() or leaf.is_complex())


def _histogram(leaf: Tensor) -> Histogram:
    flat = torch.view_as_real(leaf.detach()) if leaf.is_complex() else leaf.detach()
    flat = flat.flatten().to(torch.promote_types(flat.dtype, torch.float32))
    finite = flat[flat.isfinite()]
    entry: Histogram = {"shape": list(leaf.shape), "nonfinite": len(flat) - len(finite)}
    if not len(finite):
        return entry
    deviation, mean = torch.std_mean(finite.double(), correction=0)
    numbers = torch.stack(
        [mean, deviation, finite.min(), finite.max(), (finite == 0).double().sum()]
    )
    mean, deviation, least, most, zeros = numbers.tolist()
    low, high = max(least, mean - REACH * deviation), min(most, mean + REACH * deviation)
    if not low < high:  # one value only: a bin of its own in the middle
        width = abs(mean) or 1.0
        low, high = mean - width, mean + width
    counts = _counts(finite, low, high)
    return {
        **entry,
        "low": low,
        "high": high,
        "counts": counts.tolist(),
        "mean": mean,
        "std": deviation,
        "min": least,
        "max": most,
        "zeros": zeros / len(flat),
    }


def _counts(values: Tensor, low: float, high: float) -> Tensor:
    """Shape (BINS,); `torch.histc` has no deterministic kernel on CUDA."""
    counts = torch.zeros(BINS, dtype=torch.int64, device=values.device)
    for part in values.split(2**24):
        places = ((part.double() - low) * (BINS / (high - low))).long().clamp(0, BINS - 1)
        counts += torch.bincount(places, minlength=BINS)
    return counts
