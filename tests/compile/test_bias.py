"""Biases are added by the loops that read a product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import funcloop as fl

ADDMM = torch.ops.aten.addmm.default
X, W, B = torch.randn(5, 3), torch.randn(4, 3), torch.randn(4)


def keeps_addmm(f, *args) -> bool:
    """Whether the prepared graph multiplies and adds at once; what it computes is checked too."""
    run = fl.jit(f, backend="aot_eager")
    torch.testing.assert_close(run(*args), f(*args))
    lowered = run.lower(*args)
    lowered.compile()
    return any(node.target is ADDMM for node in lowered.traced.graph.graph.nodes)


def test_a_bias_goes_into_the_loop_behind_it():
    assert not keeps_addmm(lambda x, w, b: F.linear(x, w, b).relu(), X, W, B)
    assert not keeps_addmm(lambda x, w, b: F.gelu(F.linear(x, w, b)).sum(), X.expand(2, 5, 3), W, B)
    assert not keeps_addmm(
        lambda x, w, b: F.linear(x, w, b).tanh(), X.double(), W.double(), B.double()
    )


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (F.linear, "nothing reads it"),
        (lambda x, w, b: F.linear(x, w, b) @ w, "a product reads it"),
        (lambda x, w, b: (y := F.linear(x, w, b), y.relu()), "it is returned as well"),
        (lambda x, w, b: torch.addmm(b, x, w.T, beta=2.0).relu(), "scaled"),
        (lambda x, w, b: torch.addmm(b.expand(5, 4), x, w.T).relu(), "more than a row"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_elsewhere_it_stays(f, why):
    assert keeps_addmm(f, X, W, B)


def test_narrow_products_keep_their_bias():
    """bfloat16 would be rounded twice."""
    x, w, b = (t.bfloat16() for t in (X, W, B))
    assert keeps_addmm(lambda x, w, b: F.linear(x, w, b).relu(), x, w, b)


def test_with_a_symbolic_batch():
    run = fl.jit(lambda x, w, b: F.linear(x, w, b).relu(), backend="aot_eager", dynamic=[0])
    for rows in (5, 7, 11):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(run(x, W, B), F.linear(x, W, B).relu())
    assert run.traces == 1
