"""A fresh module that holds given tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from funcloop.stateless._plan import Plan


def merge(plan: Plan, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> nn.Module:
    """A deep copy of the module in which copies of these tensors stand; ties are kept.

    A parameter requires a gradient where its leaf is among the params.
    """
    values = plan.match(params, buffers)
    leaves: dict[str, Tensor] = {
        name: nn.Parameter(values[name].detach().clone(), requires_grad=name in params)
        for name in plan.parameters
    }
    leaves.update((name, values[name].detach().clone()) for name in plan.buffers)
    net = copy_with(plan, leaves)
    for _, local, name in plan.empty_slots:
        if name in values:
            owner = net.get_submodule(name[: -len(local)].rstrip("."))
            owner._buffers[local] = values[name].detach().clone()
    return net


def copy_with(plan: Plan, leaves: Mapping[str, Tensor]) -> nn.Module:
    """A deep copy of the module with these tensors for its own, and without its wrappers.

    `deepcopy` takes what its memo holds instead of copying: so every place that holds a leaf gets
    the new one, and the old one is never copied.
    """
    memo: dict[int, Any] = {
        id(container[local]): leaves[name]
        for container, local, name in (*plan.parameter_slots, *plan.buffer_slots)
    }
    for tensor in _results(plan):
        memo.setdefault(id(tensor), tensor.detach().clone())
    for _, _, wrapper, inner in reversed(plan.wrapped):  # the innermost first
        memo[id(wrapper)] = copy.deepcopy(inner, memo)
    return copy.deepcopy(plan.net, memo)


def _results(plan: Plan) -> Iterator[Tensor]:
    """Tensors that the last call has left in the attributes; deepcopy takes no results."""
    for module in plan.modules:
        values = [*vars(module).values(), *vars(module).get("_flat_weights", ())]
        yield from (v for v in values if isinstance(v, Tensor) and not v.is_leaf)
