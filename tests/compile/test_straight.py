"""Straight-line tree code does what the walk does."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from hypothesis import given

from funcloop import tree
from funcloop.compile._straight import builder, flattener
from tests.tree.test_pytree import TREES, Output


@given(TREES, TREES)
def test_it_equals_the_walk(value: Any, other: Any) -> None:
    leaves, structure = tree.flatten(value)
    take_apart, put_together = flattener(structure), builder(structure)
    assert take_apart is not None
    assert take_apart(value) == leaves
    assert put_together(leaves) == value
    assert tree.structure(put_together(leaves)) == structure
    got = take_apart(other)
    if tree.structure(other) == structure:
        assert got == tree.leaves(other)
    else:  # refused, or a container stands in a leaf's place, which the guard of tensors refuses
        assert got is None or tree.leaves(got) != got


def test_other_containers() -> None:
    ordered = OrderedDict(a=1, b=2)
    structure = tree.structure(ordered)
    take_apart = flattener(structure)
    assert take_apart is not None
    assert take_apart(ordered) == [1, 2]
    assert take_apart({"a": 1, "b": 2}) is None
    assert take_apart(OrderedDict(b=2, a=1)) is None
    assert type(builder(structure)([3, 4])) is OrderedDict


def test_a_registered_container_takes_the_walk() -> None:
    from tests.tree.test_pytree import register_output

    register_output()
    structure = tree.structure([Output(logits=1)])
    assert flattener(structure) is None
    assert builder(structure)([5]) == [Output(logits=5)]
