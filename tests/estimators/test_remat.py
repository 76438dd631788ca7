"""Rematerialised blocks of modules: the same gradient, random numbers included, in less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from funcloop import random, tree
from funcloop.estimators import remat, value_and_grad
from funcloop.stateless import stateless
from tests.estimators.memory import peak
from tests.laws import assert_jit_equal, assert_pure, assert_trees_equal

KEY = random.key(0)
BLOCK = stateless(nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Dropout(0.2), nn.Linear(128, 8)))


def block(params: Any, x: Tensor, key: Tensor) -> Tensor:
    return x + BLOCK.apply(params, {}, x, key=key, train=True)[0]


def loss_fn(block: Any) -> Any:
    def losses(params: Any, buffers: Any, batch: Tensor, key: Tensor) -> Tensor:
        x = batch
        for n, own in enumerate(params):
            x = block(own, x, random.fold_in(key, n))
        return x.square().sum(1)

    return losses


def problem(examples: int, blocks: int) -> tuple[Any, ...]:
    params = [BLOCK.init(key)[0] for key in random.split(KEY, blocks)]
    return params, {}, torch.randn(examples, 8), KEY


def test_the_gradient_is_the_same_with_dropout() -> None:
    args = problem(5, 2)
    want = value_and_grad(loss_fn(block))(*args)
    got = assert_pure(value_and_grad(loss_fn(remat(block))), *args)
    assert_trees_equal(got, want)
    assert all(leaf.abs().sum() > 0 for leaf in tree.leaves(got.grads))
    assert_jit_equal(value_and_grad(loss_fn(remat(block))), *args)


def test_a_route_around_the_block_gives_the_same_numbers_again() -> None:
    layer = nn.Dropout(0.5)

    def routed(dropped: Any) -> Any:
        def losses(params: Any, buffers: Any, batch: Tensor, key: Tensor) -> Tensor:
            with random.route(key):
                return (dropped(params * batch) * layer(batch)).sum(1)

        return losses

    args = torch.ones(8), {}, torch.randn(5, 8), KEY
    twice = lambda x: layer(layer(x).sin())  # noqa: E731  # two draws of the route
    want = value_and_grad(routed(twice))(*args)
    assert_trees_equal(assert_pure(value_and_grad(routed(remat(twice))), *args), want)


def test_only_one_block_is_held(tmp_path: Path) -> None:
    args = problem(2048, 6)
    plain = peak(value_and_grad(loss_fn(block)), *args, folder=tmp_path)
    assert peak(value_and_grad(loss_fn(remat(block))), *args, folder=tmp_path) < 0.6 * plain
