"""Taking apart and putting together, matched by key."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import composite

from funcloop import tree
from funcloop._errors import StructureError


class Pair(NamedTuple):
    first: Any
    second: Any


LEAVES = st.integers(-5, 5)
TREES = st.recursive(
    LEAVES | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


@composite
def shuffled(draw: Any, value: Any) -> Any:
    """The same tree with the keys of every dict in another order."""
    if isinstance(value, dict):
        keys = draw(st.permutations(list(value)))
        return {key: draw(shuffled(value[key])) for key in keys}
    if isinstance(value, Pair):
        return Pair(*[draw(shuffled(v)) for v in value])
    if isinstance(value, (list, tuple)):
        return type(value)([draw(shuffled(v)) for v in value])
    return value


@given(TREES)
def test_unflatten_is_the_inverse_of_flatten(value: Any) -> None:
    leaves, structure = tree.flatten(value)
    assert tree.unflatten(structure, leaves) == value
    assert hash(structure) == hash(tree.structure(value))
    assert len(tree.paths(value)) == len(leaves) == len(set(tree.paths(value)))


@given(st.data(), TREES)
def test_leaves_are_matched_by_key_whatever_the_order(data: Any, value: Any) -> None:
    other = data.draw(shuffled(value))
    assert tree.map(lambda a, b: (a, b), value, other) == tree.map(lambda a: (a, a), value)


def test_paths_are_keys_joined_by_slashes() -> None:
    value = {"conv.weight": 1, "nested": Pair([2, 3], None)}
    assert tree.paths(value) == ["conv.weight", "nested/first/0", "nested/first/1"]
    assert tree.paths(5) == [""]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": 1}, r"lacks \['b'\]"),
        ({"a": 1, "b": 2, "c": 3}, r"has \['c'\] too many"),
        ({"a": 1, "z": 2}, r"lacks \['b'\] and has \['z'\]"),
        ({"a": 1, "b": [2]}, "tree 2/b is a list where the other tree has a leaf"),
        ({"a": 1, "b": None}, "tree 2/b is a NoneType where the other tree has a leaf"),
        ([1, 2], "tree 2 is a list where the other tree has a dict"),
        (1, "tree 2 is a leaf where the other tree has a dict"),
    ],
)
def test_trees_that_differ_are_refused_by_name(other: Any, message: str) -> None:
    with pytest.raises(StructureError, match=message):
        tree.map(lambda a, b: a, {"a": 1, "b": 2}, other)


def test_an_ordered_dict_matches_a_dict() -> None:
    total = tree.map(lambda a, b: a + b, OrderedDict(a=1, b=2), {"b": 20, "a": 10})
    assert total == OrderedDict(a=11, b=22)
    assert isinstance(total, OrderedDict)


@pytest.mark.parametrize("leaves", [[], [1], [1, 2, 3]])
def test_a_structure_takes_exactly_its_leaves(leaves: list[int]) -> None:
    with pytest.raises(StructureError, match=f"{len(leaves)} leaves for 2 places"):
        tree.unflatten(tree.structure({"a": 0, "b": 0}), leaves)


class Output(dict):
    """Like a Hugging Face model output: a registered subclass of dict."""


@functools.cache
def register_output() -> None:
    from torch.utils import _pytree

    _pytree.register_pytree_node(
        Output,
        lambda o: (list(o.values()), list(o)),
        lambda values, keys: Output(zip(keys, values, strict=True)),
    )


def test_a_container_registered_with_torch_is_a_container() -> None:
    register_output()
    value = Output(logits=1, loss=2)
    leaves, structure = tree.flatten(value)
    assert leaves == [1, 2]
    assert hash(structure) == hash(tree.structure(value))
    assert structure == tree.structure(Output(logits=3, loss=4))
    assert structure != tree.structure(Output(logits=3, other=4))
    assert type(tree.unflatten(structure, leaves)) is Output


def test_b08_trees_are_matched_by_key_never_by_position() -> None:
    params = {"a": torch.tensor(1.0), "b": torch.tensor(10.0)}
    grads = {"b": torch.tensor(1.0), "a": torch.tensor(5.0)}
    new = tree.add_scaled(params, -0.1, grads)
    torch.testing.assert_close(new, {"a": torch.tensor(0.5), "b": torch.tensor(9.9)})
    with pytest.raises(StructureError, match=r"\['c'\]"):
        tree.add(params, {**grads, "c": torch.tensor(0.0)})
