"""Reductions of per-sample gradients, and the statistics, against the gradients themselves."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from funcloop import persample, random, tree
from funcloop._errors import ArgumentError, ShapeError
from funcloop.estimators import Aux
from funcloop.stateless import stateless
from tests.cases import MLP, classification
from tests.laws import assert_jit_equal, assert_pure, assert_trees_close

KEY = random.key(0)
MODEL = stateless(MLP())
PARAMS = tree.cast(MODEL.init(random.key(1))[0], torch.float64)
X, Y = classification(6, 4)
BATCH = (X.double(), Y)
WEIGHT = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.5, 1.0], dtype=torch.float64)


def loss_fn(params, buffers, batch, key):
    logits, buffers = MODEL.apply(params, buffers, batch[0], key=key, train=True)
    weight = batch[2] if len(batch) == 3 else None
    return F.cross_entropy(logits, batch[1], reduction="none"), Aux(buffers, {}, weight)


ROWS = persample.grads(loss_fn, engine="loop")(PARAMS, {}, BATCH, KEY)
FLAT = torch.cat([r.flatten(1) for r in ROWS.values()], 1)  # (6, P)


def flat(grads):
    return torch.cat([g.flatten() for g in tree.leaves(grads)])


@pytest.mark.parametrize("microbatch", [None, 1, 4])
def test_reductions(microbatch):
    call = lambda reduce, batch=(*BATCH, WEIGHT): persample.grads(  # noqa: E731
        loss_fn, microbatch=microbatch, reduce=reduce
    )(PARAMS, {}, batch, KEY)
    torch.testing.assert_close(flat(call("sum")), WEIGHT @ FLAT)
    torch.testing.assert_close(flat(call("mean")), WEIGHT @ FLAT / WEIGHT.sum())
    torch.testing.assert_close(flat(call("second_moment")), WEIGHT @ FLAT**2 / WEIGHT.sum())
    largest = call(lambda rows: tree.map(lambda r: (r**4).sum(0), rows))
    torch.testing.assert_close(flat(largest), (FLAT**4).sum(0))
    assert_trees_close(call(None, BATCH), ROWS, 1e-10)
    with pytest.raises(ArgumentError, match="reduce="):
        call("median")


@pytest.mark.parametrize("microbatch", [None, 4])
def test_moments(microbatch):
    got = persample.moments(loss_fn, microbatch=microbatch)(PARAMS, {}, (*BATCH, WEIGHT), KEY)
    share = WEIGHT / WEIGHT.sum()
    mean = share @ FLAT
    torch.testing.assert_close(flat(got.mean), mean)
    torch.testing.assert_close(flat(got.second_moment), share @ FLAT**2)
    torch.testing.assert_close(flat(got.variance), share @ (FLAT - mean) ** 2)


def test_noise_scale():
    got = persample.noise_scale(loss_fn)(PARAMS, {}, BATCH, KEY)
    trace = FLAT.var(0).sum()  # unbiased
    norm = FLAT.mean(0).square().sum() - trace / 6
    torch.testing.assert_close((got.trace, got.squared_norm), (trace, norm))
    torch.testing.assert_close(got.noise_scale, trace / norm)
    with pytest.raises(ShapeError, match="at least two"):
        persample.noise_scale(loss_fn)(PARAMS, {}, (X[:1].double(), Y[:1]), KEY)


def test_influence_and_cosine():
    batch = X.double(), Y
    products = persample.influence(loss_fn, microbatch=4)(PARAMS, {}, batch, batch, KEY)
    torch.testing.assert_close(products, FLAT @ FLAT.T)
    cosine = persample.cosine_similarity(loss_fn)(PARAMS, {}, batch, KEY)
    unit = FLAT / FLAT.norm(dim=1, keepdim=True)
    torch.testing.assert_close(cosine, unit @ unit.T)


def test_influence_over_positions_and_groups():
    """Sums of several outer products, convolutions in groups, rows of an embedding."""
    conv = torch.randn(4, 1, 3, dtype=torch.float64)
    params = {"w": torch.randn(2, 3, dtype=torch.float64), "conv": conv}

    def loss(params, buffers, batch, key):
        y = F.conv1d(F.linear(batch, params["w"]).transpose(1, 2), params["conv"], groups=2)
        return y.square().sum((1, 2))

    x = torch.randn(3, 5, 3, dtype=torch.float64)
    rows = persample.grads(loss, engine="loop")(params, {}, x, None)
    matrix = torch.cat([r.flatten(1) for r in rows.values()], 1)
    got = persample.influence(loss)(params, {}, x, x[:2], None)
    torch.testing.assert_close(got, matrix @ matrix[:2].T)


def test_cosine_of_a_zero_gradient_is_zero():
    cosine = persample.cosine_similarity(lambda p, b, x, k: x @ p)
    got = cosine(torch.zeros(2), {}, torch.tensor([[0.0, 0.0], [1.0, 0.0]]), None)
    assert got.tolist() == [[0, 0], [0, 1]]


def test_outliers():
    fn = persample.outliers(lambda p, b, x, k: x * p, k=3)
    got = fn(torch.tensor(1.0), {}, torch.tensor([1.0, math.nan, -4.0, 2.0]), None)
    assert got.indices.tolist() == [1, 2, 3]
    assert got.scores[1:].tolist() == [4, 2]
    many = persample.outliers(lambda p, b, x, k: x * p, k=9)
    assert len(many(torch.tensor(1.0), {}, torch.ones(2), None).indices) == 2


def test_laws():
    for fn in (
        persample.grads(loss_fn, reduce="mean", microbatch=4),
        persample.norms(loss_fn, per_layer=True),
        persample.moments(loss_fn),
        persample.noise_scale(loss_fn),
        persample.cosine_similarity(loss_fn),
    ):
        assert_pure(fn, PARAMS, {}, BATCH, KEY)
    assert_jit_equal(persample.norms(loss_fn), PARAMS, {}, BATCH, KEY)
    assert_jit_equal(persample.weighted(loss_fn), PARAMS, {}, BATCH, KEY, WEIGHT)


def test_weighted_is_linear_and_hides_what_has_no_weight():
    weighted = persample.weighted(loss_fn)
    torch.testing.assert_close(flat(weighted(PARAMS, {}, BATCH, KEY, WEIGHT)), WEIGHT @ FLAT)
    bad = X.double().clone()
    bad[1] = math.nan
    got = weighted(PARAMS, {}, (bad, Y), KEY, WEIGHT)
    torch.testing.assert_close(flat(got), WEIGHT @ FLAT)
    jacobian = torch.func.jacrev(lambda w: flat(weighted(PARAMS, {}, BATCH, KEY, w)))(WEIGHT)
    torch.testing.assert_close(jacobian.T, FLAT)
    empty = weighted(PARAMS, {}, (X[:0].double(), Y[:0]), KEY, WEIGHT[:0])
    assert not flat(empty).any()
