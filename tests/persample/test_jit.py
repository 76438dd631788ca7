"""jit equals eager, for layers of every kind and for parameters that are used in every way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from funcloop import persample, random
from funcloop.estimators import Aux
from funcloop.stateless import stateless
from tests.laws import assert_jit_equal
from tests.persample import layers

CASES = {
    "convolutions": lambda: layers.Case(
        nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.ConvTranspose2d(4, 2, 2, dilation=2),
        ),
        (2, 5, 5),
    ),
    "encoder": lambda: layers.Case(
        nn.TransformerEncoderLayer(4, 2, 6, dropout=0.2, batch_first=True), (3, 4)
    ),
    **{
        way: (lambda way=way: layers.Case(layers.Shared(way), (3,), tokens=True))
        for way in ("tied head", "chunks", "overlapping", "scaled weight", "written over")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_jit_equals_eager(name: str):
    torch.manual_seed(0)
    case = CASES[name]()
    model = stateless(case.net.double())
    params, buffers = model.init()

    def loss_fn(params, buffers, batch, key):
        output, buffers = model.apply(params, buffers, batch, key=key, train=True)
        return layers.losses(output), Aux(buffers)

    grad_fn = persample.clipped(loss_fn, 0.5)
    assert_jit_equal(grad_fn, params, buffers, case.batch(3), random.key(0), rtol=1e-9)
