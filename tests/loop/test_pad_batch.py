"""A smaller last batch, filled up, is the same batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import funcloop as fl
from funcloop._errors import ShapeError, StructureError
from funcloop.loop import batches, pad_batch


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_padded_batch_gives_the_gradient_of_the_batch(rows, device):
    model = fl.stateless(nn.Linear(5, 3).double().to(device))
    grad_fn = fl.value_and_grad(fl.supervised(model, F.cross_entropy))
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 5, generator=generator, dtype=torch.float64).to(device)
    batch = x, torch.arange(rows, device=device) % 3
    want = grad_fn(*model.init(), batch, fl.random.key(0))
    got = grad_fn(*model.init(), pad_batch(batch, 8), fl.random.key(0))
    fl.testing.assert_trees_close(got, want)


def test_all_sizes_are_one_graph():
    step = fl.jit(lambda batch: (batch["x"] * batch["weight"]).sum(), backend="aot_eager")
    for rows in (4, 2, 1):
        assert step(pad_batch({"x": torch.ones(rows)}, 4)) == rows
    assert step.traces == 1


@pytest.mark.parametrize(
    "batch",
    [torch.ones(5), torch.ones(0), torch.tensor(1.0), (torch.ones(2), torch.ones(3)), ()],
    ids=["too many", "none", "0-d", "unequal", "no leaf"],
)
def test_what_cannot_be_padded_is_refused(batch):
    with pytest.raises(ShapeError, match="pad_to=4"):
        pad_batch(batch, 4)


def test_weights_are_never_overwritten():
    arrays = {"x": torch.ones(3), "weight": torch.tensor([1.0, 0.0, 1.0])}
    with pytest.raises(StructureError, match="weight"):
        pad_batch(arrays, 4)
    with pytest.raises(StructureError, match="weight"):
        next(iter(batches(None, arrays, 2)))
