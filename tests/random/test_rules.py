"""Every random function of torch has a rule: found by torch's own tags and by reading its code."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import get_overridable_functions

from funcloop.random._rules import RULES, operator_rule

#: Tagged as drawing, but no random number comes out of them.
SILENT = {
    "_fused_sdp_choice",  # says which attention kernel would run
    "_nested_tensor_softmax_with_shape",  # a softmax
}
#: Not on a mode's path: they hand over the function in brackets, which has a rule.
HANDED_ON = {
    F._fractional_max_pool2d: F.fractional_max_pool2d,
    F._fractional_max_pool3d: F.fractional_max_pool3d,
}


def seeded() -> dict[str, list[Any]]:
    """The operators that torch tags as drawing from a generator, by name without overload."""
    found: dict[str, list[Any]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        space, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, space), name)
        try:
            operator = getattr(packet, overload or "default")
        except AttributeError:  # registered without an implementation in this build
            continue
        if torch.Tag.nondeterministic_seeded in operator.tags:
            found.setdefault(name, [packet]).append(operator)
    return found


SEEDED = seeded()
HOMES = (torch, torch.Tensor, F, torch.linalg, torch.special, torch._C._VariableFunctions)


def functions() -> Iterator[Any]:
    for home in HOMES:
        yield from (getattr(home, name) for name in dir(home) if name in SEEDED)


def python_functions() -> set[types.FunctionType]:
    named = {f for group in get_overridable_functions().values() for f in group}
    named |= {getattr(home, name) for home in (F, nn.init) for name in dir(home)
              if isinstance(getattr(home, name), types.FunctionType)}  # fmt: skip
    return {f for f in named if isinstance(f, types.FunctionType)}


def draws(function: types.FunctionType, seen: set[Any]) -> bool:
    """Whether the function's code, or that of a function of its module it calls, names a draw."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        for name in code.co_names:
            if name in SEEDED and name not in SILENT:
                return True
            called = function.__globals__.get(name)
            if isinstance(called, types.FunctionType) and called not in seen:
                seen.add(called)
                if draws(called, seen):
                    return True
    return False


def asks_the_mode(function: types.FunctionType) -> bool:
    return any("has_torch_function" in name for name in function.__code__.co_names)


def test_there_is_something_to_cover():
    assert {"rand", "dropout", "uniform_", "lstm", "poisson"} <= SEEDED.keys()
    assert len(SEEDED) > 60
    assert sum(draws(f, {f}) for f in python_functions()) > 20


def test_every_tagged_function_has_a_rule():
    without = {f.__name__ for f in functions() if callable(f) and f not in RULES}
    assert without - SILENT == set()


@pytest.mark.parametrize("name", sorted(SEEDED))
def test_every_tagged_operator_has_a_rule(name):
    for operator in SEEDED[name]:
        assert operator_rule(operator) is not None or name in SILENT


@pytest.mark.parametrize("operator", [torch.ops.aten.add, torch.ops.aten.add.Tensor])
def test_other_operators_have_none(operator):
    assert operator_rule(operator) is None


def test_every_python_function_that_draws_and_asks_the_mode_has_a_rule():
    """One that does not ask the mode needs no rule: its body's calls reach the mode themselves."""
    drawing = {f for f in python_functions() if asks_the_mode(f) and draws(f, {f})}
    assert {HANDED_ON.get(f, f) for f in drawing} - RULES.keys() == set()
    assert F.multi_head_attention_forward in drawing


def test_no_rule_is_for_a_function_that_never_draws():
    for function in RULES:
        named = function.__name__ in SEEDED
        assert named or function in HANDED_ON.values() or draws(function, {function}), function
