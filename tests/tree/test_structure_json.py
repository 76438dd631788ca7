"""Structures as JSON: rebuilt with their classes, or as plain containers under the same paths."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from typing import NamedTuple

import pytest

from funcloop._errors import StructureError
from funcloop._pytree import flatten, paths_of, unflatten
from funcloop._structure_json import from_json, plain_from_json, to_json
from funcloop.step import TrainState


class Pair(NamedTuple):
    left: object
    right: object


TREES = [
    1,
    {},
    (),
    None,
    {"a": 1, 2: [3, None, ()]},
    OrderedDict(b=1, a=(2, 3)),
    TrainState(1, {"w": 2}, {}, (3, [4]), 5),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("tree", TREES)
def test_round_trip(tree: object):
    structure = flatten(tree)[1]
    value = json.loads(json.dumps(to_json(structure)))
    assert from_json(value) == structure
    assert paths_of(plain_from_json(value)) == paths_of(structure)


def test_plain_containers():
    tree = OrderedDict(a=TrainState(1, {}, {}, (), 2), b=defaultdict(list, c=3))  # type: ignore[arg-type]
    leaves, structure = flatten(tree)
    plain = unflatten(plain_from_json(to_json(structure)), leaves)
    run = {"step": 1, "params": {}, "buffers": {}, "opt_state": (), "key": 2, "loss_scale": ()}
    assert plain == {"a": run, "b": [3]}
    assert type(plain) is dict


def test_keys_that_json_would_change_are_refused():
    for key in (1.5, True, (1, 2)):
        with pytest.raises(StructureError, match=r"strings and ints as keys: a dict with the key"):
            to_json(flatten({key: 1})[1])


def test_classes_that_cannot_be_rebuilt_are_refused():
    class Local(NamedTuple):
        x: int

    for tree, message in [
        (Local(1), "Local"),
        (defaultdict(list, a=1), "collections:defaultdict"),
    ]:
        value = to_json(flatten(tree)[1])
        with pytest.raises(StructureError, match=message):
            from_json(value)


def test_a_namedtuple_whose_fields_have_changed_is_refused():
    value = to_json(flatten(Pair(1, 2))[1])
    value["keys"] = ["right", "left"]
    with pytest.raises(StructureError, match=r"Pair had the fields \['right', 'left'\]"):
        from_json(value)
