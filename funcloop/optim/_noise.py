"""Gaussian noise added to updates (Neelakantan et al. 2015, arXiv:1511.06807)."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import random, tree
from funcloop._pytree import PyTree
from funcloop._types import Key, OptState, Params, Transform
from funcloop.optim._hyper import check_range, zero_count
from funcloop.optim._leaves import map_leaves


class NoiseState(NamedTuple):
    """State of `add_noise`.

    Attributes:
        step: Updates so far, int64, 0-d.
        key: The key, int64, (2,).
    """

    step: Tensor
    key: Key


def add_noise(key: Key, eta: float | Tensor, gamma: float = 0.55) -> Transform:
    """Add normal noise of variance `eta / (1 + t) ** gamma` to every update.

    The noise of a leaf comes from the key, the step and the leaf's path alone. In a complex leaf
    both parts get it.

    Args:
        key: int64, shape (2,).
        eta: Variance at the first update.
        gamma: How fast it falls.

    Raises:
        ArgumentError: a plain number is negative.

    >>> import torch
    >>> from funcloop import random
    >>> tx, params = add_noise(random.key(0), eta=0.01), {"w": torch.zeros(1000)}
    >>> updates, _ = tx.update(params, tx.init(params), params)
    >>> bool((updates["w"].std() - 0.1).abs() < 0.01)
    True
    """
    check_range("eta", eta)
    check_range("gamma", gamma)

    def init(params: Params, /) -> OptState:
        return NoiseState(zero_count(params), key.clone())

    def update(
        updates: PyTree, state: NoiseState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        deviation = (eta * (state.step + 1).to(torch.float64) ** -gamma) ** 0.5
        now = random.fold_in(state.key, state.step)
        noise = tree.map_with_path(lambda path, u: _normal(now, path, u), updates)
        (updates,) = map_leaves(
            lambda u, n, s: u + s * n, updates, reads=[noise], scalars=[deviation]
        )
        return updates, NoiseState(state.step + 1, state.key)

    return Transform(init, update)


def _normal(key: Key, path: str, like: Tensor) -> Tensor:
    """Normal numbers of a leaf's shape; two for each entry of a complex one."""
    own = random.fold_in(key.to(like.device), zlib.crc32(path.encode()))
    wide = torch.promote_types(like.dtype, torch.float32)
    if wide.is_complex:
        return torch.view_as_complex(random.normal(own, (*like.shape, 2), dtype=wide.to_real()))
    return random.normal(own, like.shape, dtype=wide)
