"""Estimates form a commutative monoid under the weighted mean."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from funcloop import tree
from funcloop.estimators import Aux, Estimate, value_and_grad
from tests.laws import assert_jit_equal, assert_pure, assert_trees_close, assert_trees_equal

VALUES = st.floats(-100, 100, allow_nan=False)
WEIGHTS = st.sampled_from([0.0, 0.0, 1.0, 3.0, 0.25, 17.0])


def double(value: Any) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@st.composite
def estimates(draw: Any) -> Estimate:
    return Estimate(
        grads={"w": double([draw(VALUES), draw(VALUES)])},
        loss=double(draw(VALUES)),
        buffers={
            "mean": double(draw(VALUES)),
            "count": torch.tensor(draw(st.integers(0, 9))),
            "seen": torch.tensor(draw(st.booleans())),
        },
        metrics={"accuracy": double(draw(VALUES))},
        weight=double(draw(WEIGHTS)),
    )


@given(estimates(), estimates(), estimates())
def test_combine_is_associative_and_commutative(a: Estimate, b: Estimate, c: Estimate) -> None:
    assert_trees_equal(a.combine(b), b.combine(a))
    assert_trees_close(a.combine(b).combine(c), a.combine(b.combine(c)), rtol=1e-12)


@given(estimates())
def test_identity_is_neutral(a: Estimate) -> None:
    neutral = Estimate.identity(a)
    want = a
    if a.weight == 0:  # without weight there is no mean: gradients, loss and metrics are zero
        zeros = tree.zeros_like((a.grads, a.loss, a.metrics))
        want = a._replace(grads=zeros[0], loss=zeros[1], metrics=zeros[2])
    assert_trees_equal(a.combine(neutral), want)
    assert_trees_equal(neutral.combine(a), want)


def test_combine_is_pure_and_traceable() -> None:
    def estimate(scale: float) -> Estimate:
        return tree.scale(
            Estimate(torch.ones(2), torch.ones(()), {"b": torch.ones(1)}, {}, torch.ones(())), scale
        )

    assert_pure(Estimate.combine, estimate(1.0), estimate(2.0))
    assert_jit_equal(Estimate.combine, estimate(1.0), estimate(2.0))


def test_an_estimate_without_weight_never_contributes() -> None:
    nan = torch.tensor(float("nan"))
    bad = Estimate({"w": nan}, nan, {"b": nan}, {"m": nan}, torch.tensor(0.0))
    one = torch.ones(())
    good = Estimate({"w": one}, one, {"b": one}, {"m": one}, one)
    assert_trees_equal(good.combine(bad), good)
    assert_trees_equal(bad.combine(good), good)


def test_low_precision_gradients_are_averaged_in_float32() -> None:
    def estimate(value: float) -> Estimate:
        grads = torch.tensor(value, dtype=torch.bfloat16)
        return Estimate(grads, torch.zeros(()), {}, {}, torch.ones(()))

    total = estimate(1.0).combine(estimate(1.0078125))
    assert total.grads.dtype is torch.bfloat16
    assert total.loss.dtype is torch.float32


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 2**16))
def test_b05_folding_unequal_microbatches_equals_the_full_batch(
    sizes: list[int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    weight = torch.randint(0, 4, (n,), generator=generator).double()
    params = {"w": torch.randn(3, generator=generator, dtype=torch.float64)}

    def loss_fn(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
        x, weight = batch
        losses = (x @ params["w"]).sin()
        return losses, Aux(buffers, {"square": losses**2}, weight)

    grad_fn = value_and_grad(loss_fn)
    key = torch.zeros(2, dtype=torch.int64)
    whole = grad_fn(params, {}, (x, weight), key)
    pieces = zip(x.split(sizes), weight.split(sizes), strict=True)
    parts = [grad_fn(params, {}, piece, key) for piece in pieces]
    assert_trees_close(reduce(Estimate.combine, parts), whole, rtol=1e-12)


def test_b05_the_values() -> None:
    def estimate(grads: list[float], valid: list[float]) -> Estimate:
        grad_fn = value_and_grad(lambda p, b, batch, k: (p * batch[0], Aux(b, {}, batch[1])))
        batch = torch.tensor(grads), torch.tensor(valid)
        return grad_fn(torch.tensor(1.0), {}, batch, torch.zeros(2, dtype=torch.int64))

    a = estimate([10.0, 99.0, 99.0], [1.0, 0.0, 0.0])
    b = estimate([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    c = estimate([7.0, float("nan")], [0.0, 0.0])
    assert a.combine(b).grads == 4.0
    assert c.combine(b).grads == 2.0
    nothing = c.combine(c)
    assert (nothing.grads, nothing.loss, nothing.weight) == (0.0, 0.0, 0.0)
