"""Choosing, replacing and computing with trees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from funcloop import tree
from funcloop._errors import StructureError
from tests.laws import (
    assert_dtype_preserved,
    assert_jit_equal,
    assert_pure,
    assert_trees_equal,
    assert_vmap_equal,
)
from tests.tree.test_pytree import TREES

MIXED = {
    "f": torch.randn(3, 2).t(),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "zero_d": torch.tensor(2.0, dtype=torch.float64),
    "nested": [torch.zeros(0), (torch.arange(3.0),)],
}
UNARY = {
    "neg": tree.neg,
    "scale": lambda a: tree.scale(a, 0.5),
    "add": lambda a: tree.add(a, a),
    "sub": lambda a: tree.sub(a, a),
    "mul": lambda a: tree.mul(a, a),
    "add_scaled": lambda a: tree.add_scaled(a, torch.tensor(2.0), a),
    "lerp": lambda a: tree.lerp(a, tree.zeros_like(a), 0.25),
    "where": lambda a: tree.where(torch.tensor(True), a, tree.neg(a)),
    "zeros_like": tree.zeros_like,
    "ones_like": tree.ones_like,
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize(
    "value",
    [MIXED, {}, [], None, torch.tensor(1.0)],
    ids=["mixed", "dict", "list", "none", "leaf"],
)
def test_arithmetic_is_pure_and_keeps_dtypes(name: str, value: Any) -> None:
    assert_pure(UNARY[name], value)
    assert_dtype_preserved(UNARY[name], value)


@pytest.mark.parametrize("name", UNARY)
def test_arithmetic_composes(name: str) -> None:
    members = [({"a": torch.randn(3), "b": torch.randn(())},) for _ in range(3)]
    assert_vmap_equal(UNARY[name], *members)
    assert_jit_equal(UNARY[name], members[0][0])


@given(TREES, st.sets(st.integers(0, 11)))
def test_combine_is_the_inverse_of_partition(value: Any, chosen: set[int]) -> None:
    marked = tree.unflatten(tree.structure(value), list(range(len(tree.leaves(value)))))
    yes, no = tree.partition(marked, lambda _, leaf: leaf in chosen)
    assert tree.combine(yes, no) == marked == tree.combine(no, yes)
    assert set(tree.leaves(yes)) == chosen & set(tree.leaves(marked))


def test_combine_refuses_a_leaf_twice_and_other_containers() -> None:
    with pytest.raises(StructureError, match="tree/w is in more than one tree"):
        tree.combine({"w": 1}, {"w": 2})
    with pytest.raises(StructureError, match="same containers"):
        tree.combine({"w": 1}, {"v": 2})


def test_broadcast_refuses_what_is_no_prefix() -> None:
    assert tree.broadcast(1, {"a": [0, 0]}) == {"a": [1, 1]}
    with pytest.raises(StructureError, match="prefix"):
        tree.broadcast({"a": 1}, {"b": 1})


def test_at_replaces_one_leaf_and_names_the_known_ones() -> None:
    before = {"a": [1, 2]}
    assert tree.at(before, "a/0", 5) == {"a": [5, 2]}
    assert before == {"a": [1, 2]}
    with pytest.raises(StructureError, match="no leaf at 'b'"):
        tree.at(before, "b", 5)


def test_stack_and_unstack_are_inverse() -> None:
    members = [{"w": torch.randn(2), "n": torch.tensor(i)} for i in range(3)]
    assert_trees_equal(tree.unstack(tree.stack(members)), members)
    with pytest.raises(StructureError, match="at least one"):
        tree.stack([])


def test_norm_is_right_for_huge_tiny_zero_and_half_values() -> None:
    def close(got: Tensor, want: float) -> None:
        torch.testing.assert_close(got, torch.tensor(want), rtol=1e-6, atol=0)

    close(tree.norm([torch.full((100,), 1e20)]), 1e21)
    close(tree.norm([torch.full((100,), 1e-30)]), 1e-29)
    close(tree.norm([torch.full((4,), 1e4, dtype=torch.float16)]), 2e4)
    close(tree.norm([torch.tensor([3.0 + 4.0j])]), 5.0)
    close(tree.norm({}), 0.0)
    assert tree.norm([torch.ones(1, dtype=torch.float64)]).dtype is torch.float64


def test_norm_has_derivative_zero_at_zero_and_is_twice_differentiable() -> None:
    gradient = torch.func.grad(lambda x: tree.norm([x]))
    assert_trees_equal(gradient(torch.zeros(3)), torch.zeros(3))
    x = torch.randn(4, dtype=torch.float64)
    hessian = torch.func.hessian(lambda x: tree.norm([x]))(x)
    want = (torch.eye(4, dtype=x.dtype) - torch.outer(x, x) / x.dot(x)) / x.norm()
    torch.testing.assert_close(hessian, want)


def test_all_finite_and_vdot_and_size() -> None:
    assert tree.all_finite({})
    assert tree.all_finite([torch.ones(2), torch.tensor(3)])
    assert not tree.all_finite([torch.ones(2), torch.tensor(float("inf"))])
    assert tree.vdot([torch.tensor([1j])], [torch.tensor([1j])]) == 1
    half = [torch.full((4096,), 1.0, dtype=torch.bfloat16)]
    assert tree.vdot(half, half) == 4096
    assert tree.size(MIXED) == 6 + 2 + 1 + 0 + 3
