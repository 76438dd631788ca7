"""Each law holds for what obeys it, and names what does not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from funcloop import testing
from funcloop.compile import jit
from tests.cases import TwoNames

X = torch.tensor([1.0, 2.0])


def changes_its_argument(x: Tensor) -> Tensor:
    return x.mul_(2)


def draws(x: Tensor) -> Tensor:
    return x + torch.rand(2)


def test_pure():
    assert torch.equal(testing.assert_pure(torch.neg, X), -X)
    with pytest.raises(AssertionError, match="an argument was changed: 0: 2 of 2"):
        testing.assert_pure(changes_its_argument, X.clone())
    with pytest.raises(AssertionError, match="the global CPU generator"):
        testing.assert_pure(draws, X)
    with pytest.raises(AssertionError, match="a carries a graph"):
        testing.assert_pure(lambda x: {"a": 2 * x}, X.clone().requires_grad_())


def test_deterministic():
    testing.assert_deterministic(torch.neg, X)
    with pytest.raises(AssertionError):
        testing.assert_deterministic(draws, X)


def test_jit_equal():
    testing.assert_jit_equal(torch.sin, X)
    state = iter(range(10))
    with pytest.raises(AssertionError, match="the value: 2 of 2"):
        testing.assert_jit_equal(lambda x: x + next(state), X)


def test_vmap_equal():
    testing.assert_vmap_equal(torch.dot, (X, X), (X, -X))

    def batched_wrongly(x: Tensor) -> Tensor:
        # vmap sees through mean, and not through what Python does with a shape of a batch
        return x.mean() if torch._C._functorch.is_batchedtensor(x) else x.sum()

    with pytest.raises(AssertionError, match="the value: 2 of 2"):
        testing.assert_vmap_equal(batched_wrongly, (X,), (2 * X,))


def test_max_traces_of_a_jitted_function_and_inside_one():
    step = testing.assert_max_traces(jit(torch.sin, backend="aot_eager"), 1)
    step(X)
    step(2 * X)
    with pytest.raises(AssertionError, match=r"sin was traced 2 times; at most 1"):
        step(torch.ones(3))
    inside = jit(testing.assert_max_traces(torch.cos, 1), backend="aot_eager")
    inside(X)
    inside(2 * X)
    with pytest.raises(AssertionError, match=r"cos was traced 2 times"):
        inside(torch.ones(3))
    with pytest.raises(ValueError, match="n=0"):
        testing.assert_max_traces(torch.sin, 0)


def test_trees_close_names_path_place_and_tolerance():
    want = {"w": [X, torch.zeros(2, 2)]}
    testing.assert_trees_close(copy.deepcopy(want), want)
    wrong = {"w": [X, torch.tensor([[0.0, 0.0], [0.3, 0.1]])]}
    with pytest.raises(AssertionError) as caught:
        testing.assert_trees_close(wrong, want)
    message = str(caught.value)
    for part in ("w/1: 2 of 4", "[1, 0]", "0.30000001192092896", "torch.float32 is 1e-05"):
        assert part in message


@pytest.mark.parametrize(
    ("got", "match"),
    [
        (X.double(), "dtype torch.float64 and should be torch.float32"),
        (X[:1], r"shape \(1,\) and should be \(2,\)"),
        ([X], "the leaves are"),
        (3, "int, not a tensor"),
        (X + 1e-4, "2 of 2 elements"),
        (torch.tensor([1.0, float("nan")]), r"at \[1\], is nan"),
        (torch.tensor([1.0, float("inf")]), r"at \[1\], is inf"),
    ],
)
def test_trees_that_differ(got, match: str):
    with pytest.raises(AssertionError, match=match):
        testing.assert_trees_close(got, X)


def test_equality_of_trees():
    nan = torch.tensor([float("nan"), float("inf")])
    testing.assert_trees_equal({"a": nan, "n": 3}, {"a": nan.clone(), "n": 3})
    testing.assert_trees_close(nan, nan.clone())
    with pytest.raises(AssertionError, match=r"tolerance of torch\.float32 is 0"):
        testing.assert_trees_equal(X + 1e-6, X)
    with pytest.raises(AssertionError, match="n: 3 and should be 4"):
        testing.assert_trees_equal({"n": 3}, {"n": 4})
    with pytest.raises(AssertionError, match="1 of 1 elements differ"):
        testing.assert_trees_close(torch.tensor(float("inf")), torch.tensor(-float("inf")))


def test_dtype_preserved():
    testing.assert_dtype_preserved(torch.neg, X.bfloat16())
    with pytest.raises(AssertionError, match="dtype"):
        testing.assert_dtype_preserved(torch.Tensor.float, X.bfloat16())


def test_b01_a_module_that_is_not_put_back_is_named():
    """torch's own swap leaves a plain tensor behind (torch 2.13)."""
    net = TwoNames()
    before = testing.module_state(net)
    testing.assert_module_unchanged(net, before)
    y = torch.func.functional_call(net, {"a.weight": torch.tensor([[7.0]])}, (torch.ones(1, 1),))
    assert y == 49
    with pytest.raises(AssertionError, match="weight in _parameters of a is another object"):
        testing.assert_module_unchanged(net, before)


def test_b01_other_changes_of_a_module():
    for change, match in (
        (lambda net: net.a.weight.data.add_(1), "elements differ"),
        (lambda net: setattr(net, "extra", 3), "entries|moved"),
        (lambda net: net.__delattr__("b"), "entries|moved|another"),
    ):
        net = TwoNames()
        before = testing.module_state(net)
        change(net)
        with pytest.raises(AssertionError, match=match):
            testing.assert_module_unchanged(net, before)
