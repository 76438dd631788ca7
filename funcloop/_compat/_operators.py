"""What the operators of `torch.ops` say of themselves, and those without a public name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

#: Types of the operators that `torch.ops` holds.
OPERATORS = frozenset((torch._ops.OpOverload, torch._ops.OpOverloadPacket))

#: Functions that pack and pad sequences of several lengths; torch.nn.utils.rnn calls them by these.
PACK = torch._VF._pack_padded_sequence  # type: ignore[attr-defined]  # made at import
PAD = torch._VF._pad_packed_sequence  # type: ignore[attr-defined]


def written_by(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operator of `torch.ops` says it writes.

    Why private: the schema is the only word on it, and its classes have no public name.
    """
    packet = isinstance(operator, torch._ops.OpOverloadPacket)
    for overload in [getattr(operator, n) for n in operator.overloads()] if packet else [operator]:
        places = list(enumerate(overload._schema.arguments))
        written = [(i, a.name) for i, a in places if a.alias_info and a.alias_info.is_write]
        found = [args[i] if i < len(args) else kwargs.get(name) for i, name in written]
        if found:
            return found
    return []


def is_seeded(operator: Any) -> bool:
    """Whether an operator of `torch.ops` draws from a generator.

    Why private: the tag is public, but a packet's overloads are not.
    """
    packet = isinstance(operator, torch._ops.OpOverloadPacket)
    overloads = [getattr(operator, n) for n in operator.overloads()] if packet else [operator]
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def operator_name(operator: Any) -> str:
    """The name of an operator of `torch.ops` without its overload, as in "aten::rand"."""
    packet = isinstance(operator, torch._ops.OpOverloadPacket)
    return (operator if packet else operator.overloadpacket)._qualified_op_name


def argument_defaults(space: str, name: str) -> dict[str, Any]:
    """The arguments of `torch.ops.<space>.<name>`, of its first overload, with their defaults.

    Why private: the schema is the only word on them, and its classes have no public name.
    """
    packet = getattr(getattr(torch.ops, space), name)
    overload = getattr(packet, packet.overloads()[0])
    return {argument.name: argument.default_value for argument in overload._schema.arguments}


def has_onednn() -> bool:
    """Whether `onednn_linear` can be called: torch may be built without oneDNN.

    Why private: as below.
    """
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias` by oneDNN, for float32 matrices of any strides.

    Why private: it is the only way to oneDNN's float32 products, which torch takes by itself only
    for constant weights. Checked on torch 2.13.0.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
