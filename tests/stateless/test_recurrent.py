"""Recurrent nets in plain operators equal torch's own."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from funcloop._errors import RandomnessError
from funcloop._pytree import flatten
from funcloop.random import key
from funcloop.stateless import stateless
from tests.cases import generator
from tests.laws import assert_trees_close, assert_trees_equal, assert_vmap_equal, snapshot

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}


class Packed(nn.Module):
    """Runs a recurrent net over sequences of lengths 5, 2, 1, ... or so."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, hx: None) -> tuple[Tensor, object]:
        batch, time = x.shape[:2] if self.net.batch_first else x.shape[1::-1]
        lengths = torch.tensor([max(1, (time * 2**-n).__ceil__() - n) for n in range(batch)])
        options = {"batch_first": self.net.batch_first}
        order = torch.arange(batch - 1, -1, -1)  # shortest first
        packed = pack_padded_sequence(x, lengths[order], enforce_sorted=False, **options)
        output, final = self.net(packed, hx)
        return pad_packed_sequence(output, padding_value=0.5, total_length=6, **options)[0], final


def total(output) -> Tensor:
    return torch.stack([t.sin().sum() for t in flatten(output)[0]]).sum()


def test_b27_gru_gradients_of_each_sample(device: torch.device):
    net = nn.GRU(3, 2, batch_first=True).to(device)
    model = stateless(net)
    params, buffers = model.init()
    x = torch.randn(5, 4, 3, generator=generator()).to(device)

    def loss(params, x):
        return model.apply(params, buffers, x[None], train=True)[0][0].sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = torch.func.vmap(torch.func.grad(loss), (None, 0))(params, x)
    for n in range(5):
        expected = torch.autograd.grad(net(x[n : n + 1])[0].sum(), list(net.parameters()))
        for (name, _), want in zip(net.named_parameters(), expected, strict=True):
            assert_trees_close(got[name][n], want, 1e-5)


@settings(max_examples=30)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    layers=st.integers(1, 2),
    bias=st.booleans(),
    batch_first=st.booleans(),
    bidirectional=st.booleans(),
    proj_size=st.sampled_from([0, 2]),
    unbatched=st.booleans(),
    state=st.booleans(),
    packed=st.booleans(),
    ensemble=st.booleans(),
)
def test_b27_every_form_equals_torchs(
    kind, layers, bias, batch_first, bidirectional, proj_size, unbatched, state, packed, ensemble
):
    extra = {"proj_size": proj_size} if kind == "lstm" else {}
    net = KINDS[kind](
        3, 4, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional, **extra
    ).double()
    model = stateless(Packed(net) if packed else net)
    params, _ = model.init()
    draw = lambda *shape: torch.randn(*shape, generator=generator(), dtype=torch.float64)  # noqa: E731
    unbatched = unbatched and not packed
    x = draw(2, 5, 3) if unbatched else draw(2, 2, 5, 3)  # two members
    hx = None
    if state and not packed:
        rows = layers * (1 + bidirectional)
        batch = () if unbatched else (x.shape[1] if batch_first else x.shape[2],)
        widths = (proj_size or 4, 4) if kind == "lstm" else (4,)
        parts = tuple(draw(rows, *batch, width) for width in widths)
        hx = parts if kind == "lstm" else parts[0]

    def loss(params, x):
        (output, final), _ = model.apply(params, {}, x, hx, train=True)
        return total((output, final)), (output, final)

    f = torch.func.grad(loss, has_aux=True)
    live = {name: p.clone().requires_grad_() for name, p in params.items()}
    value, outputs = loss(live, x[0])  # outside of transforms torch's own operator runs
    grads = dict(zip(live, torch.autograd.grad(value, [*live.values()]), strict=True))
    assert_trees_close(f(params, x[0]), snapshot((grads, outputs)))
    if ensemble:
        other = {name: 0.5 * p for name, p in params.items()}
        assert_vmap_equal(lambda p: f(p, x[0]), (params,), (other,))
    else:
        assert_vmap_equal(lambda x: f(params, x), *[(member,) for member in x])


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_b27_cells_under_vmap(kind):
    model = stateless(kind(3, 4).double())
    params, _ = model.init()
    x = torch.randn(5, 2, 3, generator=generator(), dtype=torch.float64)
    f = torch.func.grad(lambda p, x: total(model.apply(p, {}, x, train=True)[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_vmap_equal(lambda x: f(params, x), *[(member,) for member in x])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_second_and_forward_derivatives(kind: str, device: torch.device):
    model = stateless(KINDS[kind](2, 2).to(device, torch.float64))
    params, _ = model.init()
    x = torch.randn(3, 1, 2, generator=generator(), dtype=torch.float64).to(device)
    loss = lambda x: total(model.apply(params, {}, x, train=True)[0])  # noqa: E731
    v = torch.ones_like(x)
    grad = torch.func.grad(loss)
    eps = 1e-5
    _, slope = torch.func.jvp(loss, (x,), (v,))
    assert_trees_close(slope, (grad(x) * v).sum())
    _, curve = torch.func.jvp(grad, (x,), (v,))
    assert_trees_close(curve, (grad(x + eps * v) - grad(x - eps * v)) / (2 * eps), 1e-6)
    assert_trees_close(torch.func.grad(lambda x: (grad(x) * v).sum())(x), curve)


def test_dropout_between_layers_comes_from_the_key():
    model = stateless(nn.LSTM(3, 4, num_layers=2, dropout=0.5))
    params, _ = model.init()
    x = torch.randn(5, 2, 3, generator=generator())
    run = lambda seed: model.apply(params, {}, x, key=key(seed), train=True)[0][0]  # noqa: E731
    assert_trees_equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    with pytest.raises(RandomnessError):
        model.apply(params, {}, x, train=True)
    model.apply(params, {}, x, train=False)
    members = torch.func.vmap(lambda k: model.apply(params, {}, x, key=k, train=True)[0][0])(
        torch.stack([key(0), key(1)])
    )
    assert_trees_close(members, torch.stack([run(0), run(1)]))
