"""Values that were computed without a graph, given a derivative afterwards, in both modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from funcloop._compat import in_forward_mode, wrapper_chain
from funcloop._errors import UnsupportedError
from funcloop._pytree import PyTree, Structure, flatten, unflatten

Tensors = Sequence[Tensor]
#: One flag for each leaf.
Wanted = Sequence[bool]


class Rule(Protocol):
    """The derivative of `leaves -> outputs`; both are flat and real or complex floating.

    Attributes:
        reads_outputs: Whether it needs the outputs; otherwise it is given none of them.
    """

    @property
    def reads_outputs(self) -> bool: ...

    def pullback(
        self, outputs: Tensors, leaves: Tensors, constants: Tensors, grads: Tensors, wanted: Wanted
    ) -> Tensors:
        """Cotangents of the leaves that are wanted, from those of the outputs."""
        ...

    def pushforward(
        self, outputs: Tensors, leaves: Tensors, constants: Tensors, steps: Tensors
    ) -> Tensors:
        """Tangents of the outputs from those of the leaves."""
        ...


def attach(rule: Rule, outputs: Tensors, leaves: Tensors, constants: Tensors) -> list[Tensor]:
    """The outputs, connected to the leaves by the rule, at every level of torch.func.

    Args:
        rule: The derivative.
        outputs: Computed from `detached` leaves; a forward-mode tangent that they carry all the
            same (of a tensor that the computation captured) is kept.
        leaves: What they depend on.
        constants: Other tensors that the rule reads; nothing is differentiated in them.
    """
    if not outputs:
        return []
    call = _Call(rule, len(outputs), len(leaves), in_forward_mode())
    return list(_Attach.apply(call, *outputs, *leaves, *constants))  # type: ignore[arg-type]  # apply returns a tuple


@dataclass(frozen=True)
class _Call:
    """What is no tensor, as one opaque object: torch.func flattens the arguments of Functions."""

    rule: Rule
    outputs: int
    leaves: int
    forward: bool

    def split(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        end = self.outputs + self.leaves
        return list(values[: self.outputs]), list(values[self.outputs : end]), list(values[end:])

    def saved(self, tensors: Tensors) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        if self.rule.reads_outputs:
            return self.split(tensors)
        return [], list(tensors[: self.leaves]), list(tensors[self.leaves :])


class _Attach(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        # Views and no copies; a Function may not return its inputs under torch.func.
        return tuple(t.view_as(t) for t in call.split(tensors)[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.call, *tensors = inputs
        # The outputs as returned: they are part of the graph, for the second derivative.
        kept = output if ctx.call.rule.reads_outputs else ()
        saved = (*kept, *tensors[ctx.call.outputs :])
        ctx.save_for_backward(*saved)
        if ctx.call.forward:  # what is saved for it lives on after the backward pass
            ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        outputs, leaves, constants = call.saved(ctx.saved_tensors)
        _, wanted, _ = call.split(ctx.needs_input_grad[1:])
        back = iter(call.rule.pullback(outputs, leaves, constants, grads, wanted))
        filled = [next(back) if want else None for want in wanted]
        return (None, *[None] * call.outputs, *filled, *[None] * len(constants))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        outputs, leaves, constants = ctx.call.saved(ctx.saved_tensors)
        kept, steps, _ = ctx.call.split(tangents[1:])
        filled = [
            torch.zeros_like(x) if t is None else t for x, t in zip(leaves, steps, strict=True)
        ]
        through = ctx.call.rule.pushforward(outputs, leaves, constants, filled)
        return tuple(t if k is None else t + k for t, k in zip(through, kept, strict=True))


class Halves(NamedTuple):
    """A tree with its floating leaves, which have derivatives, apart from all others.

    Attributes:
        leaves: The floating and complex ones.
        constants: The other tensors: counters, keys, labels.
        places: For each leaf of the tree: (0, n) for leaf n, (1, n) for constant n, or the value of
            what is no tensor at all.
        structure: Of the whole tree.
    """

    leaves: list[Tensor]
    constants: list[Tensor]
    places: list[tuple[int, Any]]
    structure: Structure | str

    def join(self, leaves: Tensors, constants: Tensors) -> PyTree:
        """The tree with these leaves and constants."""
        parts = (leaves, constants)
        return unflatten(
            self.structure, [n if part > 1 else parts[part][n] for part, n in self.places]
        )


def halve(value: PyTree) -> Halves:
    flat, structure = flatten(value)
    found: tuple[list[Tensor], list[Tensor]] = [], []
    places: list[tuple[int, Any]] = []
    for leaf in flat:
        if not isinstance(leaf, Tensor):
            places.append((2, leaf))
            continue
        part = 0 if leaf.is_floating_point() or leaf.is_complex() else 1
        places.append((part, len(found[part])))
        found[part].append(leaf)
    return Halves(*found, places, structure)


def detached(leaves: Tensors) -> list[Tensor]:
    return [leaf.detach() for leaf in leaves]


def refuse_captured(outputs: Tensors, what: str) -> None:
    """Refuse outputs, computed from detached leaves, that still lead back to something.

    Raises:
        UnsupportedError: they do: the function captured a tensor that is being differentiated.
    """
    for output in outputs:
        if any(inner.requires_grad for inner in wrapper_chain(output)):
            raise UnsupportedError(
                f"{what} is differentiated in its arguments only",
                f"an output of shape {tuple(output.shape)} depends on a captured tensor that is "
                "being differentiated",
                "pass that tensor as an argument, e.g. as a part of the batch",
            )
