"""Parametrized modules, by torch's parametrizations and by its older hooks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.utils.parametrizations as P
import torch.nn.utils.parametrize as parametrize
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

from funcloop.stateless import stateless
from tests.cases import generator
from tests.laws import (
    assert_module_unchanged,
    assert_trees_close,
    assert_trees_equal,
    module_state,
    snapshot,
)

G, V = "parametrizations.weight.original0", "parametrizations.weight.original1"


def test_b23_weight_norm_trains_its_originals():
    model = stateless(P.weight_norm(nn.Linear(2, 1, bias=False), dim=0))
    params, buffers = model.init()
    assert list(params) == [G, V]
    params = {G: torch.tensor([[10.0]]), V: torch.tensor([[3.0, 4.0]])}

    def output(params: dict[str, Tensor]) -> Tensor:
        return model.apply(params, buffers, torch.tensor([[1.0, 0.0]]), train=True)[0].sum()

    grads = torch.func.grad(output)(params)
    assert_trees_close(output(params), torch.tensor(6.0))
    assert_trees_close(grads, {G: torch.tensor([[0.6]]), V: torch.tensor([[1.28, -0.96]])})


@pytest.mark.parametrize("old", [False, True])
def test_b23_spectral_norm_returns_its_power_iteration(old: bool):
    make = old_spectral_norm if old else P.spectral_norm
    net = make(nn.Linear(6, 5, bias=False))
    w, u, v = (
        ("weight_orig", "weight_u", "weight_v")
        if old
        else (
            "parametrizations.weight.original",
            *(f"parametrizations.weight.0._{x}" for x in "uv"),
        )
    )
    model, before = stateless(net), module_state(net)
    params, buffers = model.init()
    assert (list(params), set(buffers)) == ([w], {u, v})
    params = {w: torch.randn(5, 6, generator=generator())}
    given, x = snapshot(buffers), torch.ones(1, 6)

    def twice(params):
        y, after = model.apply(params, buffers, x, train=True)
        z, after = model.apply(params, after, x, train=True)
        return (y + z).sum(), after

    _, after = torch.func.grad(twice, has_aux=True)(params)
    left, right = buffers[u], buffers[v]
    for _ in range(2):
        if old:  # the older hook begins with the other side
            right = F.normalize(params[w].T @ left, dim=0)
        left = F.normalize(params[w] @ right, dim=0)
        if not old:
            right = F.normalize(params[w].T @ left, dim=0)
    assert_trees_close(after, {**after, u: left, v: right}, 1e-5)
    assert_trees_equal(buffers, given)
    _, same = model.apply(params, buffers, x, train=False)
    assert_trees_equal(same, given)
    assert_module_unchanged(net, before)


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).T


class Positive(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.exp()

    def right_inverse(self, w: Tensor) -> Tensor:
        return w.log()


def both() -> nn.Module:
    net = nn.Linear(3, 3, dtype=torch.float64)
    parametrize.register_parametrization(net, "weight", Symmetric())
    parametrize.register_parametrization(net, "bias", Positive(), unsafe=True)
    return net


MAKERS = {
    "weight_norm": lambda: P.weight_norm(nn.Linear(3, 3, dtype=torch.float64)),
    "spectral_norm": lambda: P.spectral_norm(nn.Linear(3, 3, dtype=torch.float64)),
    "orthogonal": lambda: P.orthogonal(nn.Linear(3, 3, dtype=torch.float64)),
    "own": both,
    "old weight_norm": lambda: old_weight_norm(nn.Linear(3, 3, dtype=torch.float64)),
    "old spectral_norm": lambda: old_spectral_norm(nn.Linear(3, 3, dtype=torch.float64)),
    "pruned": lambda: prune.l1_unstructured(nn.Linear(3, 3, dtype=torch.float64), "weight", 0.5),
    "lstm": lambda: old_weight_norm(nn.LSTM(3, 3, dtype=torch.float64), "weight_hh_l0"),
    "parametrized lstm": lambda: P.weight_norm(nn.LSTM(3, 3, dtype=torch.float64), "weight_hh_l0"),
}


def first(output) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`")
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("maker", MAKERS)
def test_b23_values_and_gradients_are_the_modules(maker: str, train: bool):
    net = MAKERS[maker]().train(train)
    model, before = stateless(net), module_state(net)
    params, buffers = model.init()
    x = torch.randn(4, 3, generator=generator(), dtype=torch.float64)

    def loss(params):
        output, after = model.apply(params, buffers, x, train=train)
        return first(output).sin().sum(), after

    grads, after = torch.func.grad(loss, has_aux=True)(params)
    value = loss(params)[0]
    assert_module_unchanged(net, before)
    expected = first(net(x)).sin().sum()
    expected.backward()
    assert_trees_close(value, expected.detach())
    assert_trees_close(grads, {name: p.grad for name, p in net.named_parameters()})
    assert_trees_close(after, snapshot(dict(net.named_buffers())))
    merged = model.merge(params, buffers).train(train)
    assert_trees_close(first(merged(x)).sin().sum().detach(), value)


def test_an_open_cache_of_parametrizations_is_not_used():
    net = P.weight_norm(nn.Linear(2, 1, bias=False), dim=0)
    model = stateless(net)
    params, buffers = model.init()
    zeros = {name: torch.ones_like(p) * (name == V) for name, p in params.items()}
    x = torch.ones(1, 2)
    with parametrize.cached():
        net(x)
        output, _ = model.apply(zeros, buffers, x, train=True)
        assert_trees_equal(output, torch.zeros(1, 1))
        assert_trees_equal(net(x), net(x))


class UsesCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = P.orthogonal(nn.Linear(2, 2, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        with parametrize.cached():
            return self.cell(self.cell(x))


def test_a_cache_inside_of_the_forward():
    net = UsesCache()
    model = stateless(net)
    x = torch.randn(3, 2, generator=generator())
    output, _ = model.apply(*model.init(), x, train=True)
    assert_trees_close(output, net(x).detach())
