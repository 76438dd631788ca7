"""The quick way from arguments to the leaves of a graph that was used before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from funcloop._compat import tensor_guard
from funcloop._pytree import Structure
from funcloop.compile._dynamic import Dynamic
from funcloop.compile._signature import ambient
from funcloop.compile._straight import flattener


class Dispatch:
    """Takes arguments of one kind apart; None for any other kind.

    It never accepts what `signature` would tell apart, and may refuse what it would not; the slower
    look-up by signature then decides. Calls with Python numbers always take that slower way.
    """

    def __init__(
        self, leaves: Sequence[Any], structure: Structure | str, dynamic: Dynamic | None = None
    ) -> None:
        self._flatten = flattener(structure)
        self._tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._constants = [(i, x) for i, x in enumerate(leaves) if not isinstance(x, Tensor)]
        free = dynamic.places if dynamic else ()
        self._guard = tensor_guard(
            [leaves[i] for i in self._tensors], [self._tensors.index(i) for i in free]
        )
        self._dynamic = dynamic
        self._ambient = ambient()

    def __call__(self, tree: Any) -> list[Any] | None:
        """The leaves, or None."""
        leaves = None if self._flatten is None else self._flatten(tree)
        if leaves is None or ambient() != self._ambient:
            return None
        for place, constant in self._constants:
            if type(leaves[place]) is not type(constant) or leaves[place] != constant:
                return None
        tensors = [leaves[i] for i in self._tensors] if self._constants else leaves
        if not self._guard(*tensors) or (self._dynamic and not self._dynamic.fits(leaves)):
            return None
        return leaves
