"""A fresh module that holds given tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from funcloop._errors import StructureError
from funcloop.random import key
from funcloop.stateless import stateless
from tests.cases import MLP, ConvNet, Tied
from tests.laws import assert_module_unchanged, assert_trees_equal, module_state, snapshot


@pytest.mark.parametrize("kind", [MLP, ConvNet, Tied])
def test_the_module_has_the_leaves_and_the_original_is_untouched(kind):
    net = kind()
    model, before = stateless(net), module_state(net)
    params, buffers = model.init(key(0))
    merged = model.merge(params, buffers)
    assert_module_unchanged(net, before)
    assert type(merged) is kind
    assert_trees_equal(stateless(merged).init(), (params, buffers))
    with torch.no_grad():
        for p in merged.parameters():
            p.zero_()
    assert_module_unchanged(net, before)
    assert all(p.any() for name, p in params.items() if "weight" in name)


def test_ties_and_flags():
    net = Tied()
    model = stateless(net)
    params, buffers = model.init()
    merged = model.merge(params, buffers)
    assert merged.head.weight is merged.embed.weight
    assert isinstance(merged.head.weight, nn.Parameter)
    frozen = model.merge({}, {**params, **buffers})
    assert not any(p.requires_grad for p in frozen.parameters())
    assert all(p.requires_grad for p in merged.parameters())


def test_state_dicts_are_those_of_the_module():
    net = ConvNet()
    model = stateless(net)
    assert_trees_equal(
        dict(model.merge(*model.init()).state_dict()), snapshot(dict(net.state_dict()))
    )


def test_names_have_to_match():
    model = stateless(MLP())
    params, buffers = model.init()
    params.pop("head.bias")
    with pytest.raises(StructureError, match=r"missing \['head.bias'\]"):
        model.merge(params, buffers)
