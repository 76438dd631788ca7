"""Gaussian noise for a sum of clipped gradients, drawn from a key."""

from __future__ import annotations

import torch
from torch import Tensor

from funcloop import random, tree
from funcloop._types import Estimate, Key, Params, PyTree


def gaussian_noise(key: Key, like: PyTree, std: float | Tensor) -> PyTree:
    """Independent normal numbers of this standard deviation, shaped like a tree; at least float32.

    Leaf n draws from `fold_in(key, n)`, so that leaves of equal shape differ.

    >>> noise = gaussian_noise(random.key(0), {"a": torch.zeros(2), "b": torch.zeros(2)}, 1.0)
    >>> bool((noise["a"] != noise["b"]).all())
    True
    """
    leaves, structure = tree.flatten(like)
    noise = []
    for place, leaf in enumerate(leaves):
        dtype = torch.promote_types(leaf.dtype, torch.float32)
        own = random.fold_in(key.to(leaf.device), place)
        noise.append(random.normal(own, tuple(leaf.shape), dtype=dtype) * std)
    return tree.unflatten(structure, noise)


def noised_mean(
    estimate: Estimate, params: Params, key: Key, expected: float, std: float | Tensor
) -> Estimate:
    """The sum of the gradients plus noise of `std`, over the expected number of examples.

    Only this is rounded to the dtypes of the params.
    """
    noise = gaussian_noise(key, params, std)
    grads = tree.map(
        lambda g, n, p: ((g * estimate.weight + n) / expected).to(p.dtype),
        estimate.grads,
        noise,
        params,
    )
    return estimate._replace(grads=grads)
