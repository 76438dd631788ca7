"""A module is the same after a pure call: the identical objects with the identical bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from funcloop.testing._trees import assert_trees_equal, snapshot

ModuleState = list[tuple[Any, ...]]


def module_state(net: torch.nn.Module) -> ModuleState:
    """Which object stands in every dict of every module, and the bits of the tensors.

    >>> import torch
    >>> net = torch.nn.Linear(2, 1)
    >>> before = module_state(net)
    >>> _ = torch.func.functional_call(net, {"weight": torch.zeros(1, 2)}, (torch.ones(1, 2),))
    >>> assert_module_unchanged(net, before)
    """
    return [
        (path, kind, name, _identity(value), snapshot(value) if _is_tensor(value) else None)
        for path, module in net.named_modules()
        for kind in ("__dict__", "_parameters", "_buffers", "_modules")
        for name, value in getattr(module, kind).items()
    ]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _identity(value: Any) -> tuple[int, ...]:
    """Which object it is, and which it holds (recurrent modules keep their weights in a list)."""
    held = [id(x) for x in value] if isinstance(value, (list, set)) else []
    return id(value), *held


def assert_module_unchanged(net: torch.nn.Module, before: ModuleState) -> None:
    """The module holds the identical objects, in their order, with identical bits.

    Args:
        net: A module.
        before: What `module_state(net)` returned before the call.

    Raises:
        AssertionError: an object was replaced, added, removed, moved or written; the message names
            it.

    >>> import torch
    >>> net = torch.nn.Linear(2, 1)
    >>> before = module_state(net)
    >>> net.weight = torch.nn.Parameter(torch.zeros(1, 2))
    >>> assert_module_unchanged(net, before)
    Traceback (most recent call last):
    AssertionError: weight in _parameters of the root is another object
    """
    now = module_state(net)
    for old, new in zip(before, now, strict=False):
        if old[:4] != new[:4]:
            change = "is another object" if old[:3] == new[:3] else "was moved"
            raise AssertionError(f"{old[2]} in {old[1]} of {old[0] or 'the root'} {change}")
    assert len(before) == len(now), f"the module has {len(now)} entries and had {len(before)}"
    assert_trees_equal([entry[4] for entry in now], [entry[4] for entry in before])
