"""Buffers of units that do not see each other: they leave the same ones behind, or are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from funcloop import tree
from funcloop._errors import UnsupportedError
from funcloop._types import Buffers


class Kept(NamedTuple):
    """New buffers without those that were written.

    Attributes:
        structure: Of all buffers.
        leaves: Those that were given; None where one was written.
    """

    structure: Any
    leaves: list[Any]

    def joined(self, written: Sequence[Tensor]) -> Buffers:
        """The new buffers."""
        rest = iter(written)
        return tree.unflatten(self.structure, [next(rest) if x is None else x for x in self.leaves])


def split_written(
    before: Buffers, after: Buffers, depends: Callable[[Tensor], bool]
) -> tuple[Kept, list[Tensor]]:
    """The new buffers, and the tensors among them that were not given.

    Args:
        before: The buffers that a unit was given.
        after: Those that it returned.
        depends: Whether a tensor depends on the unit.

    Raises:
        UnsupportedError: one does.
    """
    given = {id(x) for x in tree.leaves(before)}
    leaves, structure = tree.flatten(after)
    written = [x for x in leaves if isinstance(x, Tensor) and id(x) not in given]
    new = {id(x) for x in written}
    for path, x in tree.items(after):
        if id(x) in new and depends(x):
            raise UnsupportedError(
                "examples that are clipped one by one cannot share a buffer that they all write",
                f"buffer {path} depends on the example",
                "freeze it with train=, or leave it out of the loss function",
            )
    return Kept(structure, [None if id(x) in new else x for x in leaves]), written
