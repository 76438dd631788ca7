"""A leading dimension that is a symbol of the graph: one graph for all batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from funcloop._compat import accepted_sizes
from funcloop._errors import ShapeError, TraceError
from funcloop._pytree import Structure, paths_of


class Dynamic(NamedTuple):
    """The leaves whose leading dimension is the symbol, and the sizes that the graph is right for.

    Attributes:
        places: Places among all leaves.
        accepts: Whether the graph holds for a size: tracing may have compared it with another.
    """

    places: tuple[int, ...]
    accepts: Callable[[int], bool]

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Whether the graph is right for these leaves, which are of its kind."""
        size = leaves[self.places[0]].shape[0]
        return all(leaves[i].shape[0] == size for i in self.places) and self.accepts(size)


def leading_places(
    arguments: frozenset[int | str], leaves: Sequence[Any], structure: Structure | str
) -> tuple[int, ...]:
    """Places of the leaves of these arguments that have a leading dimension of two or more.

    Sizes of zero and one are constants of their own graphs: they broadcast, and a symbol that might
    be one of them would keep a compiler from knowing any stride.

    Raises:
        ShapeError: the leading dimensions differ.
    """
    if not arguments:
        return ()
    paths = paths_of(structure)
    found = [
        i
        for i, (leaf, path) in enumerate(zip(leaves, paths, strict=True))
        if isinstance(leaf, Tensor) and leaf.ndim and _argument(path) in arguments
    ]
    sizes = {paths[i].split("/", 1)[1]: leaves[i].shape[0] for i in found}
    if len(set(sizes.values())) > 1:
        raise ShapeError(
            "all leaves of a dynamic argument have the same leading dimension, the examples",
            f"sizes {sizes}",
            "give one row for each example in every leaf, or name another argument",
        )
    return tuple(found) if min(sizes.values(), default=0) > 1 else ()


def dynamic_of(places: Sequence[int], fakes: Sequence[Tensor], leaves: Sequence[Any]) -> Dynamic:
    """What a graph traced with these fake tensors has for a leading dimension.

    Raises:
        TraceError: the function made the symbol a number.
    """
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    accepts = accepted_sizes(fakes[tensors.index(places[0])])
    if accepts is None:
        raise TraceError(
            "a dynamic leading dimension stays a symbol",
            "the function compares it with a number, or reshapes by one",
            "write x.shape[0] or -1 instead of the number, or leave dynamic= out",
        )
    return Dynamic(tuple(places), accepts)


def _argument(path: str) -> int | str:
    """The position or name of the argument that a leaf of `(args, kwargs)` belongs to."""
    kind, argument, *_ = path.split("/")
    return int(argument) if kind == "0" else argument
