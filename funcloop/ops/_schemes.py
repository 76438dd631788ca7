"""Which parameters and layer outputs are quantized, and by which spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch import nn

from funcloop._errors import ArgumentError, StructureError
from funcloop.ops._spec import QuantSpec

#: One scheme for all, or by shell pattern, of which the first that matches decides (None: none).
Schemes: TypeAlias = QuantSpec | Mapping[str, QuantSpec | None]


def weight_specs(net: nn.Module, schemes: Schemes | None) -> dict[str, QuantSpec]:
    """The spec of each parameter that is quantized; a single spec takes those of two dimensions."""
    parameters = dict(net.named_parameters())
    return _chosen(schemes, parameters, lambda parameter: parameter.ndim > 1, "weights")


def activation_specs(net: nn.Module, schemes: Schemes | None) -> dict[str, QuantSpec]:
    """The spec of each layer whose output is quantized; a single spec takes activation modules."""
    layers = {path: module for path, module in net.named_modules() if path}
    chosen = _chosen(schemes, layers, _is_activation, "activations")
    for path, spec in chosen.items():
        if spec.axis is not None or spec.group_size is not None:
            raise ArgumentError(
                "the output of a layer has one scale",
                f"axis={spec.axis}, group_size={spec.group_size} for {path!r}",
                "leave both out, and give them to weights",
            )
    return chosen


def _is_activation(module: nn.Module) -> bool:
    attention = isinstance(module, nn.MultiheadAttention)
    return type(module).__module__ == nn.ReLU.__module__ and not attention


def _chosen(
    schemes: Schemes | None,
    candidates: Mapping[str, Any],
    default: Callable[[Any], bool],
    what: str,
) -> dict[str, QuantSpec]:
    if schemes is None:
        return {}
    if isinstance(schemes, QuantSpec):
        chosen = {name: schemes for name, value in candidates.items() if default(value)}
        idle = [] if chosen else [schemes]
    else:
        firsts = {name: _first(schemes, name) for name in candidates}
        chosen = {name: spec for name, spec in firsts.items() if spec is not None}
        idle = [p for p in schemes if not any(fnmatchcase(name, p) for name in candidates)]
    if idle:
        raise StructureError(
            f"a scheme for {what} finds something to quantize",
            f"{idle[0]!r} matches none of {list(candidates)}",
            "give patterns over these names",
        )
    return chosen


def _first(schemes: Mapping[str, QuantSpec | None], name: str) -> QuantSpec | None:
    return next((spec for pattern, spec in schemes.items() if fnmatchcase(name, pattern)), None)
