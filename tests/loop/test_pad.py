"""Sequences of different lengths: nothing is lost, and padding never counts."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from funcloop import estimators, random
from funcloop._errors import ArgumentError, ShapeError, StructureError
from funcloop._types import Aux
from funcloop.loop import metrics, pad, pad_collate
from tests.cases import generator
from tests.laws import assert_trees_close


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 2))
def test_the_mask_gives_the_sequences_back(lengths: list[int], multiple_of: int, width: int):
    rows = [torch.randn(n, *[2] * width, generator=generator(n)) for n in lengths]
    padded, mask = pad(rows, -7.0, multiple_of=multiple_of)
    for row, place, real in zip(rows, padded, mask, strict=True):
        assert torch.equal(place[real], row)
        assert (place[~real] == -7).all()
    assert max(lengths) <= padded.shape[1] < max(lengths) + multiple_of
    assert padded.shape[1] % multiple_of == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_dtypes_are_kept(dtype: torch.dtype):
    assert pad([torch.ones(2, dtype=dtype), torch.ones(1, dtype=dtype)])[0].dtype == dtype


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"shapes \[\]"),
        ([torch.ones(2, 3), torch.ones(2, 4)], r"\(2, 4\)"),
        ([torch.ones(2), torch.ones(2).long()], "torch.int64"),
        ([torch.tensor(1)], r"shapes \[\(\)\]"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(rows: list[torch.Tensor], message: str):
    with pytest.raises(ShapeError, match=message):
        pad(rows)


def test_a_multiple_of_nothing_is_refused():
    with pytest.raises(ArgumentError, match="multiple_of=0"):
        pad([[1]], multiple_of=0)


def test_trees_of_sequences_and_numbers():
    examples = [
        {"tokens": np.arange(3), "tags": torch.ones(3), "label": 2},
        {"label": 1, "tags": torch.ones(1), "tokens": np.arange(1)},  # another order of keys
    ]
    batch = pad_collate(examples, value={"label": 0, "tokens": 9, "tags": -1}, batch_size=3)
    assert batch["tokens"].tolist() == [[0, 1, 2], [0, 9, 9], [0, 1, 2]]
    assert batch["tags"].tolist() == [[1, 1, 1], [1, -1, -1], [1, 1, 1]]
    assert batch["label"].tolist() == [2, 1, 2]
    assert batch["mask"].tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert batch["weight"].tolist() == [1, 1, 0]
    tokens, mask, weight = pad_collate([torch.arange(2)])
    assert (tokens.shape, mask.all(), weight.tolist()) == ((1, 2), True, [1])


@pytest.mark.parametrize(
    ("examples", "kind", "message"),
    [
        ([(torch.ones(2), torch.ones(3))], ShapeError, r"lengths \[2, 3\] in example 0"),
        ([(1, 2)], ShapeError, r"lengths \[\] in example 0"),
        ([], ShapeError, "0 examples"),
        ([(torch.ones(1), 0)] * 5, ShapeError, "5 examples for batch_size 4"),
        ([(torch.ones(1), 0), (torch.ones(1),)], StructureError, "example 1"),
    ],
)
def test_examples_that_do_not_fit_are_refused(examples: list, kind: type, message: str):
    with pytest.raises(kind, match=message):
        pad_collate(examples, batch_size=4)


def test_the_gradient_over_tokens_does_not_know_the_padding():
    """Of a padded batch and its filler, and of every sequence alone."""
    g = generator()
    data = [
        (torch.randn(n, 3, generator=g), torch.randint(4, (n,), generator=g)) for n in (5, 2, 3)
    ]
    params = {"w": torch.randn(3, 4, generator=g)}

    def loss_fn(params, buffers, batch, key):
        x, y, mask, _ = batch
        logits = x @ params["w"]
        tokens = F.cross_entropy(logits.movedim(-1, 1), y, reduction="none")
        count = mask.sum(1)
        return (tokens * mask).sum(1) / count.clamp(min=1), Aux(buffers, {}, count)

    grad_fn = estimators.value_and_grad(loss_fn)
    collate = partial(pad_collate, value=(7.0, -100), multiple_of=4, batch_size=5)
    (batch,) = DataLoader(data, batch_size=5, collate_fn=collate)
    got = grad_fn(params, {}, batch, random.key(0))
    alone = [grad_fn(params, {}, pad_collate([example]), random.key(0)) for example in data]
    assert_trees_close(got, alone[0].combine(alone[1]).combine(alone[2]))
    assert got.weight == 10

    x, y, mask, _ = batch
    want = metrics.perplexity(
        torch.cat([d[0] for d in data]) @ params["w"], torch.cat([d[1] for d in data])
    )
    assert_trees_close(metrics.perplexity(x @ params["w"], y, mask), want, 1e-6)
    assert_trees_close(got.loss.exp().double(), want.compute(), 1e-6)


def test_workers_can_use_it():
    data = [(torch.arange(n), n) for n in range(1, 6)]
    collate = partial(pad_collate, batch_size=2)
    loader = DataLoader(data, batch_size=2, collate_fn=collate, num_workers=2)  # type: ignore[arg-type]
    assert sum(weight.sum() for *_, weight in loader) == 5
