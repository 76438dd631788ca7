"""Pieces: parameters as layers see them; a parameter itself, or something computed from some."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._pytree import flatten, unflatten

# fmt: off
#: Functions that only move numbers: the gradient of their result is the gradient, moved.
_MOVES = frozenset([
    "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze",
    "transpose", "swapaxes", "movedim", "permute", "t", "contiguous", "clone",
    "__get__",  # of the properties T, mT and H
])
#: The same in another dtype.
_CASTS = frozenset(["to", "type", "float", "double", "bfloat16", "half"])
#: Functions that choose some of the numbers, each at most once.
_CHOICES = frozenset(["chunk", "split", "tensor_split", "unbind", "narrow", "select"])
# fmt: on


#: Constants that their repr tells apart; all others are compared by identity.
_PLAIN = (bool, int, float, complex, str, type(None), type(...), slice, torch.dtype, torch.device)


class Piece(NamedTuple):
    """A parameter, or a function of parameters alone, such as a slice, a cast, a weight norm.

    Attributes:
        leaf: The number of the parameter, or None for something computed.
        function: What computes it.
        args: Its arguments; a Piece stands for a parameter.
        kwargs: The same by keyword.
        place: Which of several results, or None for the only one.
        moved: Whether it holds numbers of one parameter, each at most once, and nothing else.
    """

    leaf: int | None
    function: Callable[..., Any] | None = None
    args: Any = ()
    kwargs: Any = None
    place: int | None = None
    moved: bool = True

    def leaves(self) -> list[int]:
        """The parameters it is computed from."""
        if self.leaf is not None:
            return [self.leaf]
        inner = [x for x in flatten_pieces(self.args, self.kwargs) if isinstance(x, Piece)]
        return sorted({leaf for piece in inner for leaf in piece.leaves()})

    def key(self) -> Hashable:
        """Equal for pieces that are computed alike."""
        if self.leaf is not None:
            return self.leaf
        leaves, structure = flatten((self.args, self.kwargs))
        parts = [x.value if isinstance(x, _Leaf) else x for x in leaves]
        keys = tuple(x.key() if isinstance(x, Piece) else _constant_key(x) for x in parts)
        return self.function, structure, keys, self.place

    def value(self, params: Mapping[int, Tensor]) -> Tensor:
        """Compute it from the parameters; numbers that only move keep the parameter's dtype."""
        if self.leaf is not None:
            return params[self.leaf]
        assert self.function is not None
        if self.moved and _name(self.function) in _CASTS:
            (source,) = (x for x in flatten_pieces(self.args, self.kwargs) if isinstance(x, Piece))
            return source.value(params)
        args, kwargs = fill(
            self.args, self.kwargs, lambda x: x.value(params) if isinstance(x, Piece) else x
        )
        result = self.function(*args, **kwargs)
        return result if self.place is None else result[self.place]


class _Leaf:
    """Hides a Piece, which is a tuple, from the tree functions."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def flatten_pieces(args: Any, kwargs: Any) -> list[Any]:
    """The leaves of arguments, pieces whole."""
    return [x.value if isinstance(x, _Leaf) else x for x in flatten((args, kwargs))[0]]


def fill(args: Any, kwargs: Any, f: Callable[[Any], Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments with `f` applied to each leaf, pieces whole."""
    leaves, structure = flatten((args, kwargs or {}))
    return unflatten(structure, [f(x.value if isinstance(x, _Leaf) else x) for x in leaves])


def hide(args: Any, kwargs: Any, f: Callable[[Any], Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments with `f` applied to each leaf; a Piece it returns counts as a leaf afterwards."""

    def wrapped(x: Any) -> Any:
        value = f(x)
        return _Leaf(value) if isinstance(value, Piece) else value

    leaves, structure = flatten((args, kwargs or {}))
    return unflatten(structure, [wrapped(x) for x in leaves])


def moves(function: Callable[..., Any], pieces: Sequence[Piece]) -> bool:
    """Whether the function's results hold the numbers of one piece, each at most once."""
    return len(pieces) == 1 and pieces[0].moved and _name(function) in _MOVES | _CASTS | _CHOICES


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "")


def _constant_key(x: Any) -> Hashable:
    """Equal for equal arguments where that is sure; NumPy cuts the repr of a large array short."""
    return repr(x) if isinstance(x, _PLAIN) else id(x)
