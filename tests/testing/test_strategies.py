"""The strategies reach what they promise, and hypothesis is imported only for them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from torch import Tensor, nn

from funcloop import tree
from funcloop._errors import ArgumentError
from funcloop.ops import QuantSpec
from funcloop.testing import LAYOUTS, VALUES, modules, quant_specs, shapes, tensors, trees, variants

FIND = settings(
    max_examples=2000,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
ONE = (3, 2)
KINDS = {
    "normal": lambda x: (x.abs() <= 8).all(),
    "ties": lambda x: (x.frac().abs() == 0.5).all(),
    "bounds": lambda x: (x.abs() == 127).any() and (x.abs() == 128).any(),
    "subnormal": lambda x: ((x != 0) & (x.abs() < torch.finfo(torch.float32).tiny)).any(),
    "huge": lambda x: (x == torch.finfo(torch.float32).max).any(),
    "zero": lambda x: (x == 0).all() and x.signbit().any(),
    "nonfinite": lambda x: x.isnan().any() and x.isinf().any(),
}
PLACES = {
    "contiguous": lambda x: x.is_contiguous(),
    "transposed": lambda x: x.stride() == (1, 3),
    "strided": lambda x: x.stride() == (4, 2),
    "expanded": lambda x: x.stride() == (0, 1),
}


def test_every_kind_has_a_test():
    assert set(KINDS) == set(VALUES)
    assert set(PLACES) == set(LAYOUTS)


@pytest.mark.parametrize("kind", VALUES)
def test_values(kind: str):
    x = find(tensors(ONE, [torch.float32], values=[kind]), KINDS[kind], settings=FIND)
    assert x.shape == ONE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str):
    find(tensors(ONE, layouts=[layout]), PLACES[layout], settings=FIND)


def test_shapes_and_dtypes():
    for wanted in ((), (0,), (4, 4, 4)):
        assert find(shapes(), lambda s, w=wanted: s == w, settings=FIND) == wanted
    for dtype in (torch.float16, torch.float64):
        find(tensors(), lambda x, d=dtype: x.dtype is d, settings=FIND)


@settings(max_examples=30)
@given(trees(tensors((2,))))
def test_leaves_of_trees(drawn):
    assert all(isinstance(leaf, Tensor) and leaf.shape == (2,) for leaf in tree.leaves(drawn))


def test_kinds_of_trees():
    for kind in (dict, list, tuple):
        find(trees(), lambda t, k=kind: isinstance(t, k) and tree.leaves(t), settings=FIND)


@settings(max_examples=20)
@given(modules(3))
def test_modules_run_and_leave_the_generator_alone(net: nn.Module):
    assert net.eval()(torch.ones(2, 3)).shape == (2, 3)


def test_modules_draw_from_their_own_seed():
    before = torch.get_rng_state()
    find(modules(), lambda net: len(net) > 2, settings=FIND)
    assert torch.equal(torch.get_rng_state(), before)


@given(quant_specs(axes=(None, 0), group_sizes=(None, 2)))
def test_specs(spec: QuantSpec):
    assert spec.quant_max - spec.quant_min + 1 == 2**spec.bits - spec.narrow


def test_unknown_names_are_refused():
    for arguments in ({"layouts": ["diagonal"]}, {"values": ["odd"]}):
        with pytest.raises(ArgumentError, match="go by name"):
            tensors(**arguments)


def test_hypothesis_and_pytest_are_not_imported():
    program = (
        "import sys, funcloop.testing; "
        "assert not {'hypothesis', 'pytest'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@variants
def test_variants(variant):
    x = torch.tensor([1.0, 2.0], device=variant.device)
    assert torch.equal(variant(lambda x: {"y": 2 * x})(x)["y"], 2 * x)


def test_variants_are_what_they_say():
    every = {str(v): v for v in test_variants.pytestmark[0].args[1]}
    assert {"eager-cpu", "jit-cpu", "vmap-cpu"} <= set(every)
    runs = []
    every["vmap-cpu"](lambda x: runs.append(x.shape) or x + torch.zeros(1))(torch.ones(3))
    assert runs == [(3,)]
    assert every["jit-cpu"](torch.sin).traces == 0
