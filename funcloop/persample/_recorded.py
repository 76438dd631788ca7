"""What is known of a forward's tensors, and of its uses of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge

from funcloop.persample._factor import Factor
from funcloop.persample._piece import Piece


class Known(NamedTuple):
    """A tensor of the forward that is a parameter, or computed from parameters alone.

    Attributes:
        tensor: As the forward has it; autograd sees every use that no rule explains.
        twin: The same value, handed to functions whose rule explains the use.
        piece: How it is computed.
        version: Of `tensor`, when it was made.
    """

    tensor: Tensor
    twin: Tensor
    piece: Piece
    version: int


class Recorded(NamedTuple):
    """One use of a piece that a rule explains.

    Attributes:
        piece: What was used.
        edge: Where the gradient of the output arrives.
        saved: Tensors of the forward that the gradient needs.
        versions: Theirs, when they were saved.
        factor: Of the gradient, from the output's gradient and what was saved.
        function: The name of what was called.
    """

    piece: Piece
    edge: GradientEdge
    saved: tuple[Tensor, ...]
    versions: tuple[int, ...]
    factor: Callable[..., Factor]
    function: str
