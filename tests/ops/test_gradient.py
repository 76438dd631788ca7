"""Identities with another backward."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from funcloop import ops, tree
from funcloop.testing import tensors, trees
from tests.laws import assert_trees_close, assert_trees_equal

FAST = settings(max_examples=30)


def gradient(f, x):
    """The gradient for a gradient of `x` itself."""
    return torch.func.vjp(f, x)[1](x)[0]


@FAST
@given(trees(), st.floats(-3, 3, width=16))
def test_scale_and_reverse(x, factor: float):
    for f in (ops.scale_grad, ops.reverse_grad):
        assert_trees_equal(f(x, factor), x)
    if not tree.leaves(x):
        return
    want = tree.map(lambda leaf: leaf * factor, x)
    assert_trees_equal(gradient(lambda x: ops.scale_grad(x, factor), x), want)
    assert_trees_equal(gradient(lambda x: ops.reverse_grad(x, -factor), x), want)


@FAST
@given(trees(tensors(values=("normal", "zero"), dtypes=[torch.float64])), st.floats(0.0, 4.0))
def test_clip(x, max_norm: float):
    assert_trees_equal(ops.clip_grad(x, max_norm), x)
    if not tree.leaves(x):
        return
    norm = tree.norm(x)
    factor = 1 if norm <= max_norm else max_norm / norm
    got = gradient(lambda x: ops.clip_grad(x, max_norm), x)
    assert_trees_close(got, tree.map(lambda leaf: leaf * factor, x))


def test_clip_edges():
    def clipped(g: Tensor) -> Tensor:
        return torch.func.vjp(lambda x: ops.clip_grad(x, 1.0), torch.zeros_like(g))[1](g)[0]

    assert_trees_equal(clipped(torch.zeros(3)), torch.zeros(3))
    assert_trees_close(clipped(torch.full((4,), 1e30)), torch.full((4,), 0.5))
    assert clipped(torch.tensor([float("nan"), 1.0])).isnan().all()
    assert clipped(torch.tensor([float("inf"), 1.0])).isnan().any()


def test_clip_of_each_member():
    def loss(x: Tensor, g: Tensor) -> Tensor:
        return (ops.clip_grad(x, 1.0) * g).sum()

    g = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    got = torch.func.vmap(torch.func.grad(loss))(torch.zeros(2, 2), g)
    assert_trees_close(got, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_stop_gradient_at_every_level():
    def f(x: Tensor) -> Tensor:
        return x * ops.stop_gradient(x) ** 2

    x = torch.tensor(3.0)
    assert torch.func.grad(f)(x) == 9
    assert torch.func.grad(torch.func.grad(f))(x) == 0
    assert torch.func.jvp(f, (x,), (torch.ones(()),))[1] == 9
