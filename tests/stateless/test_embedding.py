"""Embeddings: rescaled rows, sparse gradients, bags under vmap."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from funcloop.stateless import stateless
from tests.cases import generator
from tests.laws import assert_trees_close, assert_trees_equal, assert_vmap_equal, snapshot


def test_b13_max_norm_leaves_the_weight_alone():
    model = stateless(nn.Embedding(2, 2, max_norm=1.0))
    w = torch.tensor([[3.0, 4.0], [0.1, 0.0]])
    output, after = model.apply({"weight": w}, {}, torch.tensor([0]), train=True)
    assert_trees_close(output, torch.tensor([[0.6, 0.8]]), 1e-5)
    assert_trees_equal(w, torch.tensor([[3.0, 4.0], [0.1, 0.0]]))
    assert after == {}


def test_b13_a_bag_with_max_norm():
    model = stateless(nn.EmbeddingBag(2, 2, max_norm=1.0, mode="sum"))
    w = torch.tensor([[3.0, 4.0], [0.1, 0.0]])
    output, _ = model.apply({"weight": w}, {}, torch.tensor([[0, 1]]), train=True)
    assert_trees_close(output, torch.tensor([[0.7, 0.8]]), 1e-5)
    assert_trees_equal(w, torch.tensor([[3.0, 4.0], [0.1, 0.0]]))


class TiedNorm(nn.Module):
    """The head shares a weight that the embedding rescales in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3, max_norm=0.5, dtype=torch.float64)
        self.head = nn.Linear(3, 5, bias=False, dtype=torch.float64)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens)).sin().sum()


@pytest.mark.parametrize("vmapped", [False, True])
def test_b13_ties_and_gradients_are_those_of_the_module(vmapped: bool):
    net = TiedNorm()
    model = stateless(net)
    params, _ = model.init()
    tokens = torch.tensor([[0, 1], [1, 4]])

    def loss(params, tokens):
        return model.apply(params, {}, tokens, train=True)[0]

    got = torch.func.grad_and_value(loss)
    if vmapped:
        grads, values = torch.func.vmap(got, (None, 0))(params, tokens)
        for n in range(2):
            assert_trees_close(values[n], loss(params, tokens[n]))
            assert_trees_close(grads["embed.weight"][n], got(params, tokens[n])[0]["embed.weight"])
        return
    grads, value = got(params, tokens)
    output = net(tokens)  # changes the module's weight
    output.backward()
    assert_trees_close(value, output.detach())
    assert_trees_close(grads["embed.weight"], net.embed.weight.grad)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_dense(kind):
    model = stateless(kind(4, 2, sparse=True))
    params, _ = model.init()
    tokens = torch.tensor([[0, 1]])
    loss = lambda p: model.apply(p, {}, tokens, train=True)[0].sum()  # noqa: E731
    got = torch.func.grad(loss)(params)["weight"]
    assert got.layout == torch.strided
    share = 1.0 if kind is nn.Embedding else 0.5
    assert_trees_equal(got, share * torch.tensor([[1.0, 1], [1, 1], [0, 0], [0, 0]]))


@settings(max_examples=25)
@given(
    mode=st.sampled_from(["sum", "mean", "max"]),
    form=st.sampled_from(["matrix", "offsets", "last offset"]),
    padding_idx=st.sampled_from([None, 0, -1]),
    max_norm=st.sampled_from([None, 0.7]),
    weighted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_b27_bags_under_vmap_equal_the_loop(mode, form, padding_idx, max_norm, weighted, seed):
    g = generator(seed)
    net = nn.EmbeddingBag(
        6,
        3,
        max_norm=max_norm,
        mode=mode,
        padding_idx=padding_idx,
        include_last_offset=form == "last offset",
        dtype=torch.float64,
    )
    model = stateless(net)
    params, _ = model.init()
    tokens = torch.randint(6, (3, 2, 4) if form == "matrix" else (3, 7), generator=g)
    offsets = {"offsets": torch.tensor([0, 3, 3]), "last offset": torch.tensor([0, 3, 3, 7])}
    weights = torch.rand(tokens.shape, generator=g, dtype=torch.float64)
    use_weights = weighted and mode == "sum"

    def loss(params, tokens, weights):
        args = (tokens,) if form == "matrix" else (tokens, offsets[form])
        extra = {"per_sample_weights": weights} if use_weights else {}
        output, _ = model.apply(params, {}, *args, train=True, **extra)
        return output.sin().sum(), output

    f = lambda t, w: torch.func.grad(loss, has_aux=True)(params, t, w)  # noqa: E731
    before = snapshot(params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_vmap_equal(f, *zip(tokens, weights, strict=True))
    assert_trees_equal(params, before)
