"""Transforms of torch.func nest around a pure call."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import grad, jvp, vmap

from funcloop.stateless import stateless
from tests.cases import generator
from tests.laws import assert_trees_close, assert_vmap_equal


def normal(*shape: int):
    return torch.randn(*shape, generator=generator(), dtype=torch.float64)


MAKERS = {
    "norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), normal(2, 3, 5, 3)),
    "gru": (lambda: nn.GRU(3, 4), normal(2, 3, 2, 2, 3)),
    "max_norm": (
        lambda: nn.Embedding(6, 3, max_norm=0.5),
        torch.randint(6, (2, 3, 4), generator=generator()),
    ),
    "spectral": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)),
        normal(2, 3, 4, 3),
    ),
}


def loss_of(model):
    def loss(params, buffers, x):
        output, after = model.apply(params, buffers, x, train=True)
        output = output[0] if isinstance(output, tuple) else output
        return output.sin().sum(), after

    return loss


def scaled(tree, factor: float):
    return {n: factor * t if t.is_floating_point() else t for n, t in tree.items()}


@pytest.mark.parametrize("maker", MAKERS)
def test_vmap_of_vmap_of_grad(maker: str):
    make, x = MAKERS[maker]
    model = stateless(make().double())
    params, buffers = model.init()
    f = grad(loss_of(model), has_aux=True)
    rows = [(scaled(params, a), scaled(buffers, a), x[n]) for n, a in enumerate((1.0, 0.5))]

    def row(params, buffers, x):  # three members of one row share its leaves
        own = {n: b.expand(3, *b.shape) for n, b in buffers.items()}
        return vmap(f, (None, 0, 0))(params, own, x)

    assert_vmap_equal(row, *rows)
    for params_n, buffers_n, x_n in rows:
        members = [(buffers_n, member) for member in x_n]
        assert_vmap_equal(lambda b, x, p=params_n: f(p, b, x), *members)


@pytest.mark.parametrize("maker", MAKERS)
def test_forward_and_backward_derivatives_agree(maker: str):
    make, x = MAKERS[maker]
    model = stateless(make().double())
    params, buffers = model.init()
    loss = lambda p: loss_of(model)(p, buffers, x[0, 0])[0]  # noqa: E731
    ones = scaled({n: torch.ones_like(p) for n, p in params.items()}, 1.0)
    grads, slope = grad(loss)(params), jvp(loss, (params,), (ones,))[1]
    assert_trees_close(slope, torch.stack([g.sum() for g in grads.values()]).sum())
    curve = jvp(grad(loss), (params,), (ones,))[1]
    back = grad(lambda p: torch.stack([g.sum() for g in grad(loss)(p).values()]).sum())(params)
    assert_trees_close(curve, back)
