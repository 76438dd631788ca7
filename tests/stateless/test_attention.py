"""Attention under vmap, and torch's layers that have an inference-only fast path."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from funcloop.random import key
from funcloop.stateless import stateless
from tests.cases import generator
from tests.laws import assert_trees_close, assert_trees_equal, assert_vmap_equal


class Attend(nn.Module):
    """Scaled dot-product attention over (heads, T, D), with or without a batch dimension."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 12, dtype=torch.float64)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.proj(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, **self.options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_b28_no_member_takes_a_slow_path(options, batch, device: torch.device):
    moved = {n: v.to(device) if isinstance(v, Tensor) else v for n, v in options.items()}
    model = stateless(Attend(**moved).to(device))
    params, _ = model.init()
    x = torch.randn(3, *batch, 2, 5, 4, generator=generator(), dtype=torch.float64).to(device)

    def loss(params, x):
        return model.apply(params, {}, x, train=True)[0].sin().sum()

    f = torch.func.grad_and_value(loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_vmap_equal(lambda x: f(params, x), *[(member,) for member in x])


def test_curvature_of_attention():
    model = stateless(Attend(is_causal=True))
    params, _ = model.init()
    x = torch.randn(2, 5, 4, generator=generator(), dtype=torch.float64)
    loss = lambda x: model.apply(params, {}, x, train=True)[0].sin().sum()  # noqa: E731
    grad, v, eps = torch.func.grad(loss), torch.ones_like(x), 1e-5
    forward = torch.func.jvp(grad, (x,), (v,))[1]
    backward = torch.func.grad(lambda x: (grad(x) * v).sum())(x)
    assert_trees_close(forward, backward)
    assert_trees_close(backward, (grad(x + eps * v) - grad(x - eps * v)) / (2 * eps), 1e-6)


LAYERS = {
    "attention": lambda: nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2
    ),
    "decoder": lambda: nn.TransformerDecoderLayer(4, 2, 8, batch_first=True),
}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_under_vmap(layer: str, train: bool, device: torch.device):
    net = LAYERS[layer]().to(device, torch.float64)
    model = stateless(net)
    params, _ = model.init()
    x = torch.randn(3, 2, 5, 4, generator=generator(), dtype=torch.float64).to(device)
    extra = {"attention": 2, "encoder": 0, "decoder": 1}[layer]

    def run(params, x):
        output, _ = model.apply(params, {}, x, *[x] * extra, key=key(0), train=train)
        return (output[0] if layer == "attention" else output).sin().sum()

    f = torch.func.grad_and_value(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_vmap_equal(lambda x: f(params, x), *[(member,) for member in x])


def test_the_fast_path_of_other_code_is_left_alone():
    assert torch.backends.mha.get_fastpath_enabled()
    net = LAYERS["encoder"]().eval()
    x = torch.randn(2, 5, 4, generator=generator())
    with torch.no_grad():
        fast = net(x)
        slow, _ = stateless(net).apply(*stateless(net).init(), x, train=False)
    assert_trees_close(slow, fast)
    assert torch.backends.mha.get_fastpath_enabled()
    assert_trees_equal(net(x).detach(), net(x).detach())
