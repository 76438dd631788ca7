"""Masks and one-hot samples, with a gradient for the scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from funcloop import ops, random
from funcloop._errors import ArgumentError
from funcloop.testing import shapes, tensors
from tests.laws import (
    assert_deterministic,
    assert_trees_close,
    assert_trees_equal,
    assert_vmap_equal,
)

SCORES = tensors(shapes(1, 3, max_side=5), values=("normal", "ties", "zero"))


@settings(max_examples=60)
@given(SCORES, st.data())
def test_exactly_the_k_largest_the_first_of_equal_ones(scores: Tensor, data):
    k = data.draw(st.integers(0, scores.shape[-1]))
    mask = ops.top_k_mask(scores, k)
    want = np.zeros(scores.shape)
    order = np.argsort(-scores.double().numpy(), -1, kind="stable")
    np.put_along_axis(want, order[..., :k], 1.0, -1)
    assert_trees_equal(mask, torch.from_numpy(want).to(scores.dtype))


def test_k_has_to_fit():
    for scores, k in ((torch.ones(3), 4), (torch.ones(3), -1), (torch.tensor(1.0), 0)):
        with pytest.raises(ArgumentError, match="chooses k of the last dimension"):
            ops.top_k_mask(scores, k)


def test_samples_are_one_hot_and_as_often_as_softmax_says():
    logits = torch.tensor([0.0, 1.0, 2.0])
    keys = random.split(random.key(0), 4000)
    samples = torch.func.vmap(lambda key: ops.gumbel_softmax(logits, key))(keys)
    assert_trees_equal(samples.sum(-1), torch.ones(4000))
    assert ((samples == 0) | (samples == 1)).all()
    # four standard errors of a frequency
    assert ((samples.mean(0) - logits.softmax(-1)).abs() < 4 * (0.25 / 4000) ** 0.5).all()


def test_sampling_laws():
    logits = torch.tensor([[0.3, -1.0, 2.0], [0.0, 0.1, 0.2]])
    key, other = random.split(random.key(1))
    assert_deterministic(ops.gumbel_softmax, logits, key)
    assert_vmap_equal(ops.gumbel_softmax, (logits, key), (logits + 1, other))


def test_gradient_is_that_of_the_relaxed_sample():
    logits, key, weight = (
        torch.tensor([0.3, -1.0, 2.0]),
        random.key(2),
        torch.tensor([1.0, -2.0, 3]),
    )
    noise = random.gumbel(key, logits.shape)

    def relaxed(logits: Tensor, temperature: Tensor) -> Tensor:
        return (((logits + noise) / temperature).softmax(-1) * weight).sum()

    def hard(logits: Tensor, temperature: Tensor) -> Tensor:
        return (ops.gumbel_softmax(logits, key, temperature) * weight).sum()

    args = logits, torch.tensor(0.7)
    got, want = (torch.func.grad(f, argnums=(0, 1))(*args) for f in (hard, relaxed))
    assert_trees_close(got, want)
