"""Pure calls can be traced into one graph, alone and inside of transforms."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from funcloop._errors import TraceError
from funcloop.random import key
from funcloop.stateless import stateless
from tests.cases import ConvNet, Tied, classification, generator
from tests.laws import assert_jit_equal, assert_pure

IMAGES = classification(3, 1, 8, 8)[0]
MAKERS = {
    "norm": (
        lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
        torch.randn(4, 3, generator=generator()),
    ),
    "cumulative": (
        lambda: nn.BatchNorm1d(3, momentum=None),
        torch.randn(4, 3, generator=generator()),
    ),
    "tied": (Tied, torch.randint(11, (3, 4), generator=generator())),
    "gru": (lambda: nn.GRU(3, 2, num_layers=2), torch.randn(2, 2, 3, generator=generator())),
    "attention": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0)),
        torch.randn(2, 3, 4, generator=generator()),
    ),
    "dropout": (lambda: nn.Dropout(0.5), torch.ones(5)),
    "max_norm": (
        lambda: nn.Embedding(5, 3, max_norm=0.5),
        torch.randint(5, (3, 2), generator=generator()),
    ),
    "bag": (lambda: nn.EmbeddingBag(5, 3), torch.randint(5, (3, 2), generator=generator())),
    "spectral": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)),
        torch.randn(4, 3, generator=generator()),
    ),
    "in place": (
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)),
        torch.randn(4, 3, generator=generator()),
    ),
}


def loss_of(model, x):
    def loss(params, buffers, k, x):
        output, after = model.apply(params, buffers, x, key=k, train=True)
        output = output[0] if isinstance(output, tuple) else output
        return output.sin().sum(), after

    return loss


@pytest.mark.parametrize("maker", MAKERS)
def test_gradient_and_buffers_under_jit(maker: str):
    make, x = MAKERS[maker]
    model = stateless(make())
    params, buffers = model.init()
    loss = loss_of(model, x)
    f = grad(loss, has_aux=True) if params else loss
    assert_pure(f, params, buffers, key(0), x)
    assert_jit_equal(f, params, buffers, key(0), x)


@pytest.mark.parametrize("maker", ["gru", "norm", "max_norm"])
def test_an_ensemble_under_jit(maker: str):
    make, x = MAKERS[maker]
    model = stateless(make())
    leaves = model.init(torch.stack([key(1), key(2)]))
    keys = torch.stack([key(0), key(1)])
    f = vmap(grad(loss_of(model, x), has_aux=True), (0, 0, 0, None))
    assert_jit_equal(f, *leaves, keys, x)


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_b28_a_branch_on_a_value_is_refused_by_its_line():
    model = stateless(Branch())
    with pytest.raises(TraceError, match=r"return x if x.sum\(\) > 0 else -x"):
        assert_jit_equal(lambda x: model.apply({}, {}, x, train=True)[0], torch.ones(2))


def test_meta_tensors():
    model = stateless(ConvNet())
    params, buffers = model.init()
    to_meta = lambda tree: {name: leaf.to("meta") for name, leaf in tree.items()}  # noqa: E731
    x = IMAGES.to("meta")
    output, after = model.apply(to_meta(params), to_meta(buffers), x, train=False)
    assert (output.shape, output.device.type) == ((3, 10), "meta")
    assert list(after) == list(buffers)


def test_inference_mode():
    model = stateless(ConvNet())
    params, buffers = model.init()
    with torch.inference_mode():
        _, after = model.apply(params, buffers, IMAGES, key=key(0), train=True)
        _, after = model.apply(params, after, IMAGES, key=key(0), train=True)
    assert after["norm.num_batches_tracked"] == 2
    assert buffers["norm.num_batches_tracked"] == 0
