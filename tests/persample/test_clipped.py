"""Clipping: against the naive oracle, its options, its edges, and the laws."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from funcloop import persample, random, schedules
from funcloop._errors import (
    ArgumentError,
    NonFiniteError,
    ShapeError,
    StructureError,
    TraceError,
    UnsupportedError,
)
from funcloop.compile import jit
from funcloop.estimators import Aux, value_and_grad
from funcloop.stateless import stateless
from tests.cases import MLP, classification
from tests.laws import (
    assert_deterministic,
    assert_jit_equal,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
    assert_vmap_equal,
)
from tests.references import clipped_mean, per_sample_gradients

KEY = random.key(5)
MODEL = stateless(MLP())
PARAMS, BUFFERS = MODEL.init(random.key(1))


def loss_fn(params, buffers, batch, key):
    """A batch is (x, y) or (x, y, weight)."""
    x, y, weight = batch if len(batch) == 3 else (*batch, None)
    logits, buffers = MODEL.apply(params, buffers, x, key=key, train=key is not None)
    accuracy = (logits.argmax(-1) == y).to(x.dtype)
    return F.cross_entropy(logits, y, reduction="none"), Aux(
        buffers, {"accuracy": accuracy}, weight
    )


def linear_loss(params, buffers, batch, key):
    """The gradient of example n is its row of the batch, cut into the tensors a and b."""
    return batch[:, :1] @ params["a"] + batch[:, 1:] @ params["b"]


def zeros(size):
    return {"a": torch.zeros(1), "b": torch.zeros(size - 1)}


def joined(grads):
    return torch.cat([grads["a"], grads["b"]])


@given(
    st.floats(1e-3, 100.0),
    st.sampled_from(["auto", "vmap", "loop"]),
    st.sampled_from([None, 1, 2, 5]),
    st.booleans(),
)
@settings(max_examples=12)
def test_equals_the_oracle(max_norm, engine, microbatch, weighted):
    params = {name: p.double() for name, p in PARAMS.items()}
    x, y = classification(5, 4)
    weight = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0], dtype=torch.float64)
    batch = (x.double(), y, weight) if weighted else (x.double(), y)
    keys = random.fold_in(KEY, torch.arange(5))

    def loss_of_one(params, n):
        one = (x[n, None].double(), y[n, None])
        return loss_fn(params, BUFFERS, one, keys[n])[0][0]

    rows = per_sample_gradients(loss_of_one, params, torch.arange(5))
    want = clipped_mean(rows, max_norm, weight if weighted else None)
    grad_fn = persample.clipped(loss_fn, max_norm, engine=engine, microbatch=microbatch)
    estimate = grad_fn(params, BUFFERS, batch, KEY)
    assert_trees_close(estimate.grads, want, 1e-10)
    assert estimate.weight == (4.5 if weighted else 5)
    assert set(estimate.metrics) == {"accuracy", "clipped", "nonfinite"}


def test_laws():
    batch = classification(4, 4)
    for grad_fn in (
        persample.clipped(loss_fn, 0.3),
        persample.clipped(loss_fn, torch.tensor(0.3), per_layer=True, microbatch=3),
    ):
        assert_pure(grad_fn, PARAMS, BUFFERS, batch, KEY)
        assert_deterministic(grad_fn, PARAMS, BUFFERS, batch, KEY)
        assert_jit_equal(grad_fn, PARAMS, BUFFERS, batch, KEY)
    keys = random.split(KEY, 2)
    members = [(PARAMS, {}, batch, keys[i]) for i in range(2)]
    assert_vmap_equal(persample.clipped(loss_fn, 0.3), *members)


def test_gradient_of_the_clipped_gradient():
    """As in meta-learning through a private step; finite differences in float64."""
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.1, 0.2]], dtype=torch.float64)

    def loss(params, buffers, batch, key):
        return (F.linear(batch, params["w"][None])[:, 0] - 1).square()

    def outer(w, engine):
        grads = persample.clipped(loss, 1.0, engine=engine)({"w": w}, {}, x, None).grads
        return grads["w"].square().sum()

    w = torch.tensor([0.3, -0.2], dtype=torch.float64)
    for engine in ("auto", "vmap", "loop"):
        got = torch.func.grad(outer)(w, engine)
        step = 1e-6 * torch.eye(2, dtype=torch.float64)
        want = torch.stack([(outer(w + d, engine) - outer(w - d, engine)) / 2e-6 for d in step])
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_dropout_differs_by_example_and_not_by_engine():
    x, y = torch.ones(4, 4), torch.zeros(4, dtype=torch.int64)
    rows = [persample.grads(loss_fn, engine=e)(PARAMS, {}, (x, y), KEY) for e in ("auto", "vmap")]
    loop = persample.grads(loss_fn, engine="loop")(PARAMS, {}, (x, y), KEY)
    assert_trees_close(rows[0], rows[1])
    assert_trees_close(rows[0], loop)
    assert not torch.equal(loop["head.weight"][0], loop["head.weight"][1])
    more = persample.grads(loss_fn, microbatch=3)(PARAMS, {}, (x, y), KEY)
    assert_trees_close(more, loop)


def test_without_clipping_it_is_the_plain_gradient():
    weight = torch.tensor([1.0, 0.5, 0.0])
    batch = (*classification(3, 4), weight)
    got = persample.clipped(loss_fn, 1e9)(PARAMS, {}, batch, None)
    want = value_and_grad(loss_fn)(PARAMS, {}, batch, None)
    assert_trees_close(got.grads, want.grads)
    assert_trees_close((got.loss, got.weight), (want.loss, want.weight))
    assert_trees_close(got.metrics["accuracy"], want.metrics["accuracy"])


def test_per_layer_bounds_each_tensor():
    x = torch.tensor([[3.0, 0.6, 0.8]])
    grad_fn = persample.clipped(linear_loss, {"a": 2.0, "b": 0.5}, per_layer=True)
    grads = grad_fn(zeros(3), {}, x, None).grads
    assert_trees_close(grads, {"a": torch.tensor([2.0]), "b": torch.tensor([0.3, 0.4])})
    assert grad_fn.sensitivity() == math.hypot(2.0, 0.5)
    assert persample.clipped(linear_loss, 3.0).sensitivity() == 3.0
    with pytest.raises(ArgumentError, match="pass params="):
        persample.clipped(linear_loss, 3.0, per_layer=True).sensitivity()


def test_an_empty_tree():
    for options in ({}, {"per_layer": True}):
        grad_fn = persample.clipped(lambda p, b, x, k: x, 1.0, **options)
        estimate = grad_fn({}, {}, torch.ones(3), None)
        assert estimate.grads == {}
        assert estimate.loss == 1


def test_normalize():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.1], [0.0, 0.0]])
    grads = persample.clipped(linear_loss, 2.0, normalize=True)(zeros(2), {}, x, None).grads
    torch.testing.assert_close(joined(grads), torch.tensor([1.2 / 3, 3.6 / 3]))


def test_weight_inside_bounds_any_weight():
    def weighted_loss(params, buffers, batch, key):
        return linear_loss(params, buffers, batch[0], key), Aux(buffers, {}, batch[1])

    batch = torch.tensor([[3.0, 4.0]]), torch.tensor([10.0])
    inside = persample.clipped(weighted_loss, 1.0, weight="inside")(zeros(2), {}, batch, None)
    torch.testing.assert_close(joined(inside.grads) * inside.weight, torch.tensor([0.6, 0.8]))
    outside = persample.clipped(weighted_loss, 1.0)(zeros(2), {}, batch, None)
    torch.testing.assert_close(joined(outside.grads), torch.tensor([0.6, 0.8]))


def test_a_scheduled_norm_counts_its_calls():
    halving = lambda count: 4.0 * 0.5 ** count.to(torch.float32)  # noqa: E731
    grad_fn = persample.clipped(linear_loss, halving)
    with pytest.raises(StructureError, match=r"grad_fn\.init"):
        grad_fn(zeros(2), {}, torch.tensor([[30.0, 40.0]]), None)
    buffers, step = grad_fn.init({}), jit(grad_fn, backend="aot_eager")
    for want in (4.0, 2.0, 1.0):
        estimate = step(zeros(2), buffers, torch.tensor([[30.0, 40.0]]), None)
        buffers = estimate.buffers
        torch.testing.assert_close(joined(estimate.grads).norm(), torch.tensor(want))
    assert step.traces == 1
    assert buffers.calls == 3
    assert grad_fn.sensitivity(count=torch.tensor(1)) == 2
    persample.clipped(linear_loss, schedules.constant(1.0))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
def test_units_of_several_examples(axis, engine):
    """Two users with three examples each; the gradient of a user's mean loss is clipped."""
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    means = x.mean(1)
    want = means * (1 / means.norm(dim=1, keepdim=True)).clamp(max=1)
    batch = x.movedim(0, axis)
    grad_fn = persample.clipped(linear_loss, 1.0, unit_axis=axis, engine=engine)
    estimate = grad_fn(zeros(4), {}, batch, None)
    torch.testing.assert_close(joined(estimate.grads), want.mean(0))
    assert estimate.weight == 2
    norms = persample.norms(linear_loss, unit_axis=axis, engine=engine)(zeros(4), {}, batch, None)
    torch.testing.assert_close(norms, means.norm(dim=1))


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
def test_zero_gradients_and_one_example(engine):
    x = torch.zeros(1, 3)
    for normalize in (False, True):
        grad_fn = persample.clipped(linear_loss, 1.0, engine=engine, normalize=normalize)
        estimate = grad_fn(zeros(3), {}, x, None)
        assert_trees_equal(estimate.grads, zeros(3))


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
def test_empty_batch(engine):
    x, y = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    estimate = persample.clipped(loss_fn, 1.0, engine=engine)(PARAMS, {}, (x, y), KEY)
    assert_trees_equal(estimate.grads, {k: torch.zeros_like(p) for k, p in PARAMS.items()})
    assert estimate.weight == 0
    assert estimate.loss == 0
    assert estimate.metrics["accuracy"] == 0
    rows = persample.grads(loss_fn, engine=engine)(PARAMS, {}, (x, y), KEY)
    assert rows["head.bias"].shape == (0, 3)
    assert persample.norms(loss_fn, engine=engine)(PARAMS, {}, (x, y), KEY).shape == (0,)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_example_that_is_not_finite(bad):
    x = torch.tensor([[3.0, 4.0], [bad, 0.0], [0.0, 0.5]])
    call = lambda **options: persample.clipped(linear_loss, 1.0, **options)(zeros(2), {}, x, None)  # noqa: E731
    assert joined(call().grads).isnan().any()
    skipped = call(on_nonfinite="skip")
    torch.testing.assert_close(joined(skipped.grads), torch.tensor([0.3, 0.65]))
    assert skipped.weight == 2
    torch.testing.assert_close(skipped.metrics["nonfinite"], torch.tensor(1 / 3))
    assert skipped.loss == 0
    for microbatch in (None, 1):
        with pytest.raises(NonFiniteError, match="example 1"):
            call(on_nonfinite="raise", microbatch=microbatch)
    with pytest.raises(TraceError, match="skip"):
        jit(persample.clipped(linear_loss, 1.0, on_nonfinite="raise"), backend="aot_eager")(
            zeros(2), {}, x, None
        )


def test_padding_of_weight_zero_hides_its_nan():
    x, y = classification(3, 4)
    x[1] = math.nan
    batch = (x, y, torch.tensor([1.0, 0.0, 1.0]))
    got = persample.clipped(loss_fn, 0.1)(PARAMS, {}, batch, None)
    want = persample.clipped(loss_fn, 0.1)(PARAMS, {}, (x[[0, 2]], y[[0, 2]]), None)
    assert_trees_close(got.grads, want.grads)
    assert_trees_close(got.loss, want.loss)


def test_an_overflowing_norm_is_never_clipped_to_zero():
    grads = persample.clipped(linear_loss, 1.0)(zeros(2), {}, torch.tensor([[1e30, 0.0]]), None)
    assert grads.grads["a"].isnan()
    assert grads.metrics["nonfinite"] == 1


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False)])
def test_batch_norm_in_training_mode_is_refused(norm, engine):
    model = stateless(nn.Sequential(nn.Linear(4, 4), norm))
    params, buffers = model.init()

    def loss(params, buffers, batch, key):
        y, buffers = model.apply(params, buffers, batch, key=key, train=True)
        return y.square().sum(1), Aux(buffers)

    with pytest.raises(UnsupportedError, match=r"'1'.*GroupNorm"):
        persample.clipped(loss, 1.0, engine=engine)(params, buffers, torch.ones(2, 4), KEY)


def test_frozen_batch_norm_and_counters_pass():
    class Counter(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = stateless(nn.Sequential(nn.BatchNorm1d(4), Counter()))
    params, buffers = model.init()

    def loss(params, buffers, batch, key):
        y, buffers = model.apply(params, buffers, batch, train={"0": False, "": True})
        return y.square().sum(1), Aux(buffers)

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    results = [
        persample.clipped(loss, 1.0, engine=e, microbatch=2)(params, buffers, x, KEY)
        for e in ("auto", "vmap", "loop")
    ]
    assert_trees_close(results[0], results[1])
    assert_trees_close(results[0], results[2])
    assert results[0].buffers["1.calls"] == 1


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
def test_a_buffer_that_depends_on_the_example_is_refused(engine):
    def loss(params, buffers, batch, key):
        return batch @ params, Aux({"seen": buffers["seen"] + batch.mean()})

    with pytest.raises(UnsupportedError, match="buffer seen depends on the example"):
        persample.clipped(loss, 1.0, engine=engine)(
            torch.ones(2), {"seen": torch.zeros(())}, torch.ones(3, 2), None
        )


def test_refusals():
    x = torch.ones(3, 2)
    with pytest.raises(ShapeError, match='reduction="none"'):
        persample.clipped(lambda p, b, x, k: (x @ p).mean(), 1.0)(torch.ones(2), {}, x, None)
    with pytest.raises(ShapeError, match="2 losses for a batch of 1"):
        persample.clipped(lambda p, b, x, k: (x * p).flatten(), 1.0)(torch.ones(2), {}, x, None)
    with pytest.raises(ShapeError, match="one entry a unit"):
        persample.clipped(linear_loss, 1.0)(zeros(2), {}, (x, x[:2]), None)
    for options in ({"engine": "fast"}, {"weight": "both"}, {"on_nonfinite": "ignore"}):
        with pytest.raises(ArgumentError):
            persample.clipped(linear_loss, 1.0, **options)
    with pytest.raises(ArgumentError, match="positive"):
        persample.clipped(linear_loss, 0.0)
    with pytest.raises(ArgumentError, match="b=-1"):
        persample.clipped(linear_loss, {"a": 1.0, "b": -1.0}, per_layer=True)
    with pytest.raises(ArgumentError, match="at least one unit"):
        persample.clipped(linear_loss, 1.0, microbatch=0)(zeros(2), {}, x, None)
    with pytest.raises(StructureError, match="clipped"):
        persample.clipped(lambda p, b, x, k: (x @ p, Aux(b, {"clipped": x[:, 0]})), 1.0)(
            torch.ones(2), {}, x, None
        )


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_b15_a_bound_that_is_not_positive_never_turns_a_gradient_round(bound):
    for norm in (torch.tensor(bound), lambda count: torch.tensor(bound)):
        grad_fn = persample.clipped(linear_loss, norm)
        estimate = grad_fn(zeros(2), grad_fn.init({}), torch.ones(3, 2), None)
        assert all(g.isnan().all() for g in estimate.grads.values())


@pytest.mark.parametrize("way", ["parameter", "cast", "slice of a cast", "autocast"])
@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_one_example_moves_an_unrounded_sum_by_no_more_than_the_bound(way, engine):
    """Rounded to bfloat16, a sum of 600 moves by 4 or by nothing."""
    dtype = torch.bfloat16 if way == "parameter" else torch.float32
    params = {"w": torch.zeros(1, 4, dtype=dtype), "b": torch.zeros(1, dtype=dtype)}

    def loss(params, buffers, x, key):
        w, b = params["w"], params["b"]
        if "cast" in way and way != "autocast":
            w, b = w.bfloat16(), b.bfloat16()
        if way == "slice of a cast":
            first, second = w.chunk(2, 1)
            return F.linear(x[:, :2], first, b)[:, 0] + F.linear(x[:, 2:], second)[:, 0]
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            return F.linear(x, w, b)[:, 0].float()

    x = torch.full((1201, 4), 3.0, dtype=torch.float32 if way == "autocast" else torch.bfloat16)
    grad_fn = persample.clipped(loss, 1.0, engine=engine, microbatch=600)
    sums = [grad_fn.unrounded(params, {}, x[:n], None) for n in (1200, 1201)]
    moved = [
        (b * sums[1].weight - a * sums[0].weight).flatten()
        for a, b in zip(*[s.grads.values() for s in sums], strict=True)
    ]
    assert torch.cat(moved).dtype is torch.float32
    torch.testing.assert_close(torch.cat(moved).norm(), torch.tensor(1.0), rtol=2e-3, atol=0)


def test_ghost_refuses_a_matrix_without_a_rule():
    def loss(params, buffers, batch, key):
        return torch.einsum("bi,io->b", batch, params)

    call = lambda engine: persample.clipped(loss, 1.0, engine=engine)(  # noqa: E731
        torch.ones(2, 2), {}, torch.ones(3, 2), None
    )
    with pytest.raises(UnsupportedError, match=r"\(2, 2\) is used by torch.*einsum"):
        call("ghost")
    assert_trees_close(call("auto").grads, call("vmap").grads)
