"""Freeze and thaw move leaves and change nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from funcloop._errors import StructureError
from funcloop.stateless import stateless
from tests.cases import ConvNet

MODEL = stateless(ConvNet())


@given(st.lists(st.sampled_from(["conv", "norm", "head", "*.weight", "*.bias", ""]), min_size=1))
def test_thaw_undoes_freeze(patterns: list[str]):
    params, buffers = MODEL.init()
    frozen, more = MODEL.freeze(params, buffers, patterns)
    assert {**frozen, **more}.keys() == {**params, **buffers}.keys()
    assert all(more[name] is params[name] for name in params if name not in frozen)
    back, rest = MODEL.thaw(frozen, more, patterns)
    assert list(back) == list(params)
    assert list(rest) == list(buffers)
    assert all(back[name] is params[name] for name in params)


def test_what_the_patterns_take():
    params, buffers = MODEL.init()
    kept, more = MODEL.freeze(params, buffers, "conv")
    assert list(kept) == ["norm.weight", "norm.bias", "head.weight", "head.bias"]
    assert list(more) == [*buffers, "conv.weight", "conv.bias"]
    kept, _ = MODEL.freeze(params, buffers, ["*.bias", "norm.*"])
    assert list(kept) == ["conv.weight", "head.weight"]
    assert list(params) == list(MODEL.names)


@pytest.mark.parametrize("pattern", ["con", "conv.kernel", ["conv", "nothing"]])
def test_a_pattern_that_matches_nothing_is_refused(pattern):
    with pytest.raises(StructureError, match="matches none of"):
        MODEL.freeze(*MODEL.init(), pattern)


def test_buffers_proper_never_move():
    params, buffers = MODEL.init()
    with pytest.raises(StructureError, match="matches none of"):
        MODEL.thaw(params, buffers, "norm.running_mean")
    frozen = MODEL.freeze(params, buffers, "norm")
    back, rest = MODEL.thaw(*frozen, "")
    assert list(rest) == list(buffers)
    assert list(back) == list(params)


def test_gradients_see_no_frozen_leaf():
    params, buffers = MODEL.freeze(*MODEL.init(), "conv")
    x = torch.ones(2, 1, 8, 8)
    loss = lambda p: MODEL.apply(p, buffers, x, train=False)[0].sum()  # noqa: E731
    assert list(torch.func.grad(loss)(params)) == list(params)
