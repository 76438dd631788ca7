"""Inductor gives the words that eager mode gives, whatever the number of elements."""

from __future__ import annotations

import pytest
import torch

from funcloop import random
from funcloop.compile import jit
from tests.laws import assert_trees_equal


@pytest.mark.parametrize("count", [5, 257])
def test_inductor_gives_the_same_words(count: int, device: torch.device) -> None:
    """In one lane and in four: Inductor multiplies an `arange` in 32 bits, and draws differed."""
    assert_trees_equal(
        jit(lambda key: random.bits(key, (count,)))(random.key(123).to(device)).cpu(),
        random.bits(random.key(123), (count,)),
    )


def test_inductor_gives_the_same_keys(device: torch.device) -> None:
    def keys(key: torch.Tensor) -> torch.Tensor:
        return random.split(random.fold_in(key, key[0]), 40)

    assert_trees_equal(jit(keys)(random.key(123).to(device)).cpu(), keys(random.key(123)))
