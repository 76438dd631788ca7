"""Fresh parameters from a key, by the modules' own rules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.utils.parametrizations as P
import torch.nn.utils.parametrize as parametrize
from torch import Tensor, nn

from funcloop._errors import ShapeError, UnsupportedError
from funcloop.random import key, split
from funcloop.stateless import stateless
from tests.cases import MLP, ConvNet, Tied
from tests.laws import (
    assert_deterministic,
    assert_jit_equal,
    assert_module_unchanged,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
    module_state,
)

MAKERS = {
    "mlp": MLP,
    "convnet": ConvNet,
    "tied": Tied,
    "lstm": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8),
    "attention": lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=3),
    "norms": lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(3), nn.PReLU(4)),
    "bilinear": lambda: nn.Sequential(nn.Bilinear(2, 3, 4)),
    "transposed": lambda: nn.ConvTranspose2d(2, 4, 3, groups=2),
    "embedding": lambda: nn.Embedding(5, 3, padding_idx=1),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_init_is_a_pure_function_of_the_key(maker: str):
    net = MAKERS[maker]()
    model, before = stateless(net), module_state(net)
    params, buffers = assert_pure(model.init, key(0))
    assert_module_unchanged(net, before)
    own, own_buffers = model.init()
    assert [(n, p.shape, p.dtype) for n, p in params.items()] == [
        (n, p.shape, p.dtype) for n, p in own.items()
    ]
    assert list(buffers) == list(own_buffers)
    assert_deterministic(model.init, key(0))
    drawn = [n for n, p in params.items() if p.flatten()[0] != p.flatten()[-1]]
    other, _ = model.init(key(1))
    assert all(not torch.equal(params[n], other[n]) for n in drawn)


@pytest.mark.parametrize("maker", ["mlp", "convnet", "lstm", "attention", "transposed"])
def test_the_rule_is_the_modules_own(maker: str):
    """Mean and spread of each parameter over many draws are those of torch's own draws."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = [dict(MAKERS[maker]().named_parameters()) for _ in range(30)]
    drawn, _ = stateless(MAKERS[maker]()).init(split(key(3), 30))
    for name in nets[0]:
        own = torch.stack([net[name].detach() for net in nets])
        assert_trees_close(drawn[name].std(), own.std(), 0.2)
        assert (drawn[name].mean() - own.mean()).abs() <= 0.3 * own.std(), name


def test_a_uniform_rule_in_detail():
    params, _ = stateless(nn.Linear(400, 100)).init(key(0))
    weight, bound = params["weight"], 400**-0.5
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.99 * bound
    assert abs(weight.std() - bound / 3**0.5) < 0.01 * bound


def test_a_padding_row_stays_zero():
    params, _ = stateless(MAKERS["embedding"]()).init(key(0))
    assert_trees_equal(params["weight"][1], torch.zeros(3))


@pytest.mark.parametrize("maker", ["mlp", "convnet", "attention"])
def test_a_batch_of_keys_gives_stacked_leaves(maker: str):
    model = stateless(MAKERS[maker]())
    keys = split(key(0), 3)
    stacked = model.init(keys)
    for n in range(3):
        one = model.init(keys[n])
        for got, want in zip(stacked, one, strict=True):
            assert_trees_equal({name: leaf[n] for name, leaf in got.items()}, want)
    assert_trees_close(torch.func.vmap(model.init)(keys), stacked)


def test_init_under_jit():
    assert_jit_equal(stateless(nn.Linear(2, 2)).init, key(0))


def test_frozen_parameters_and_statistics_come_back_as_buffers():
    net = ConvNet()
    net.norm.running_mean.fill_(3.0)
    net.conv.requires_grad_(False)
    params, buffers = stateless(net).init(key(0))
    assert "conv.weight" in buffers
    assert "conv.weight" not in params
    assert_trees_equal(buffers["norm.running_mean"], torch.zeros(4))


class Own(nn.Module):
    """Owns a parameter without saying how to draw it."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x) * self.scale


class Tells(Own):
    def reset_parameters(self) -> None:
        self.lin.reset_parameters()
        with torch.no_grad():
            self.scale.data.normal_(5.0, 0.1)


def test_a_parameter_that_nothing_draws_is_refused():
    with pytest.raises(UnsupportedError, match=r"none draws \['scale'\].*reset_parameters"):
        stateless(Own()).init(key(0))
    params, _ = stateless(Tells()).init(key(0))
    assert 4 < params["scale"].mean() < 6


@pytest.mark.parametrize("make", [P.weight_norm, P.spectral_norm, P.orthogonal])
def test_parametrized_weights_are_drawn_through_their_inverse(make):
    torch.manual_seed(0)
    net = make(nn.Linear(3, 3))
    model, before = stateless(net), module_state(net)
    params, buffers = model.init(key(0))
    plain, _ = stateless(nn.Linear(3, 3)).init(key(0))
    assert_module_unchanged(net, before)
    assert_trees_equal(params["bias"], plain["bias"])
    if make is not P.orthogonal:  # whose inverse keeps the nearest orthogonal matrix
        original = params.get("parametrizations.weight.original1")
        if original is None:
            original = params["parametrizations.weight.original"]
        assert_trees_close(original, plain["weight"])
    weight = model.merge(params, buffers).weight.detach()
    if make is P.orthogonal:
        assert_trees_close(weight @ weight.T, torch.eye(3), 1e-4)


class OneWay(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.abs()


def test_a_parametrization_without_inverse_is_refused():
    net = nn.Linear(2, 2)
    parametrize.register_parametrization(net, "weight", OneWay())
    with pytest.raises(UnsupportedError, match="right_inverse"):
        stateless(net).init(key(0))


def test_a_key_has_one_of_two_shapes():
    with pytest.raises(ShapeError, match=r"a key of shape \(3,\)"):
        stateless(MLP()).init(torch.zeros(3, dtype=torch.int64))
