"""DP-SGD: the noise once a logical batch, its size, the norm that finds itself, the refusals."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from funcloop import optim, persample, privacy, random
from funcloop._errors import ArgumentError, StructureError
from funcloop.compile import jit
from funcloop.estimators import Aux, accumulate
from funcloop.stateless import stateless
from funcloop.step import TrainState, train_step
from tests.cases import MLP, classification
from tests.laws import (
    assert_deterministic,
    assert_jit_equal,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
)

KEY = random.key(3)


def zero_loss(params, buffers, batch, key):
    """Every per-sample gradient is zero."""
    return sum((p * 0).sum() for p in params.values()) + batch[:, 0] * 0


def linear_loss(params, buffers, batch, key):
    return batch @ params["w"]


def std_of(grad_fn, params, size, seed=0):
    estimate = grad_fn(params, {}, torch.zeros(size, 1), random.key(seed))
    return {name: g.std() for name, g in estimate.grads.items()}, estimate.grads


@pytest.mark.parametrize("microbatch", [None, 1, 3])
def test_b07_noise_once_for_a_logical_batch(microbatch):
    params = {"a": torch.zeros(10_000), "b": torch.zeros(10_000)}
    grad_fn = privacy.dp_sgd(
        zero_loss,
        max_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=4,
        microbatch=microbatch,
    )
    before = torch.get_rng_state()
    std, first = std_of(grad_fn, params, 4)
    assert torch.equal(before, torch.get_rng_state())
    for value in std.values():
        assert abs(value - 0.25) < 0.006
    _, again = std_of(grad_fn, params, 4)
    assert_trees_equal(again, first)
    _, other = std_of(grad_fn, params, 4, seed=1)
    for x, y in ((first["a"], first["b"]), (first["a"], other["a"])):
        assert torch.corrcoef(torch.stack([x, y]))[0, 1].abs() < 0.05


def test_b07_fresh_noise_in_each_step_of_a_run():
    params = {"w": torch.zeros(10_000)}
    grad_fn = privacy.dp_sgd(zero_loss, max_norm=1.0, noise_multiplier=1.0, expected_batch_size=4)
    tx = optim.sgd(1.0)
    step = train_step(grad_fn, tx)
    states = [TrainState.create(params, {}, tx, key=KEY)]
    for _ in range(2):
        states.append(step(states[-1], torch.zeros(4, 1))[0])
    moves = [b.params["w"] - a.params["w"] for a, b in itertools.pairwise(states)]
    assert all(abs(move.std() - 0.25) < 0.006 for move in moves)
    assert torch.corrcoef(torch.stack(moves))[0, 1].abs() < 0.05


def test_b07_an_order_of_nesting_that_adds_noise_more_often_is_marked():
    grad_fn = privacy.dp_sgd(zero_loss, max_norm=1.0, noise_multiplier=1.0, expected_batch_size=4)
    outer = privacy.noised(
        persample.clipped(zero_loss, 1.0), noise_multiplier=1.0, expected_batch_size=4
    )
    for fn in (grad_fn, outer):
        assert "once for a logical batch" in fn.once_per_batch
    with pytest.raises(ArgumentError, match="noise enters once"):
        privacy.noised(grad_fn, noise_multiplier=1.0, expected_batch_size=4, sensitivity=1.0)


def test_sum_of_clipped_gradients_over_the_expected_size():
    x = torch.tensor([[6.0, 8.0], [0.0, 1.0], [30.0, 40.0]])
    call = lambda **options: privacy.dp_sgd(  # noqa: E731
        linear_loss, max_norm=1.0, noise_multiplier=0.0, expected_batch_size=8, **options
    )({"w": torch.zeros(2)}, {}, x, KEY)
    want = (torch.tensor([0.6, 0.8]) * 2 + torch.tensor([0.0, 1.0])) / 8
    for options in ({}, {"microbatch": 2}, {"engine": "vmap"}, {"engine": "loop"}):
        torch.testing.assert_close(call(**options).grads["w"], want)


def test_noise_of_per_layer_clipping():
    params = {str(i): torch.zeros(4000) for i in range(8)}
    grad_fn = privacy.dp_sgd(
        zero_loss, max_norm=1.0, noise_multiplier=0.5, expected_batch_size=2, per_layer=True
    )
    std, _ = std_of(grad_fn, params, 2)
    for value in std.values():
        assert abs(value / (0.5 * math.sqrt(8) / 2) - 1) < 0.05


def test_weights_never_raise_the_bound_and_bad_examples_are_left_out():
    x = torch.tensor([[3.0, 4.0], [math.nan, 1.0], [9.0, 9.0]])
    weight = torch.tensor([50.0, 1.0, 0.0])

    def loss_fn(params, buffers, batch, key):
        return linear_loss(params, buffers, batch[0], key), Aux(buffers, {}, batch[1])

    grad_fn = privacy.dp_sgd(loss_fn, max_norm=1.0, noise_multiplier=0.0, expected_batch_size=1)
    estimate = grad_fn({"w": torch.zeros(2)}, {}, (x, weight), KEY)
    torch.testing.assert_close(estimate.grads["w"], torch.tensor([0.6, 0.8]))
    assert estimate.weight == 1


def test_an_empty_batch_gives_noise_alone():
    params = {"w": torch.zeros(10_000)}
    grad_fn = privacy.dp_sgd(zero_loss, max_norm=2.0, noise_multiplier=1.0, expected_batch_size=4)
    std, _ = std_of(grad_fn, params, 0)
    assert abs(std["w"] - 0.5) < 0.012
    masked = privacy.dp_sgd(
        lambda p, b, x, k: (zero_loss(p, b, x, k), Aux(b, {}, torch.zeros(x.shape[0]))),
        max_norm=2.0,
        noise_multiplier=1.0,
        expected_batch_size=4,
    )
    assert_trees_close(
        masked(params, {}, torch.zeros(3, 1), random.key(0)).grads,
        grad_fn(params, {}, torch.zeros(0, 1), random.key(0)).grads,
    )


def test_laws():
    model = stateless(MLP())
    params, buffers = model.init()

    def loss_fn(params, buffers, batch, key):
        logits, buffers = model.apply(params, buffers, batch[0], key=key, train=True)
        return F.cross_entropy(logits, batch[1], reduction="none"), Aux(buffers)

    adaptive = privacy.adaptive_norm(0.5, count_noise=3.0)
    accountant = privacy.Accountant(1.0, 0.1, 1e-5, 10, "rdp")
    plain = privacy.dp_sgd(loss_fn, max_norm=0.5, noise_multiplier=1.0, expected_batch_size=4)
    full = privacy.dp_sgd(
        loss_fn,
        max_norm=adaptive,
        noise_multiplier=1.0,
        expected_batch_size=4,
        accountant=accountant,
    )
    batch = classification(4, 4)
    for grad_fn, state in ((plain, buffers), (full, full.init(buffers))):
        assert_pure(grad_fn, params, state, batch, KEY)
        assert_deterministic(grad_fn, params, state, batch, KEY)
    assert_jit_equal(full, params, full.init(buffers), batch, KEY)


def test_the_adaptive_norm_finds_its_quantile():
    """Norms are 1, 2, ..., 100: the norm that clips a quarter of them is near 75."""
    x = torch.arange(1.0, 101.0)[:, None]
    adaptive = privacy.adaptive_norm(5.0, quantile=0.75, learning_rate=0.3, count_noise=5.0)
    grad_fn = privacy.dp_sgd(
        linear_loss, max_norm=adaptive, noise_multiplier=1.0, expected_batch_size=100
    )
    params, buffers = {"w": torch.zeros(1)}, grad_fn.init({})
    step = jit(grad_fn, backend="aot_eager")
    norms = []
    for n in range(60):
        estimate = step(params, buffers, x, random.key(n))
        buffers = estimate.buffers
        norms.append(float(buffers.max_norm))
    assert 65 < sum(norms[-20:]) / 20 < 85
    assert step.traces == 1
    assert buffers.steps == 60


def test_adaptive_noise_costs_what_fixed_noise_costs():
    """The two mechanisms of a step together are one Gaussian of the given multiplier."""
    for multiplier, count_noise in ((1.0, 10.0), (0.5, 3.0), (2.0, 4.0)):
        adaptive = privacy.adaptive_norm(count_noise=count_noise)
        on_gradient = adaptive.split_noise(multiplier)
        together = on_gradient**-2 + (2 * count_noise) ** -2
        assert math.isclose(together**-0.5, multiplier)
    with pytest.raises(ArgumentError, match="more than half"):
        privacy.adaptive_norm(count_noise=0.5).split_noise(2.0)


def test_a_scheduled_norm_follows_the_steps():
    grad_fn = privacy.dp_sgd(
        linear_loss,
        max_norm=lambda count: 2.0 - count.to(torch.float32),
        noise_multiplier=0.0,
        expected_batch_size=1,
    )
    buffers = grad_fn.init({})
    for want in (2.0, 1.0):
        estimate = grad_fn({"w": torch.zeros(2)}, buffers, torch.tensor([[30.0, 40.0]]), KEY)
        buffers = estimate.buffers
        torch.testing.assert_close(estimate.grads["w"].norm(), torch.tensor(want))


def test_refusals():
    options = {"max_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 4}
    for wrong in (
        {"max_norm": -1.0},
        {"noise_multiplier": -1.0},
        {"expected_batch_size": 0},
        {"engine": "fast"},
    ):
        with pytest.raises(ArgumentError):
            privacy.dp_sgd(linear_loss, **{**options, **wrong})
    adaptive = privacy.adaptive_norm(count_noise=3.0)
    with pytest.raises(ArgumentError, match="one norm"):
        privacy.dp_sgd(linear_loss, **{**options, "max_norm": adaptive}, per_layer=True)
    grad_fn = privacy.dp_sgd(linear_loss, **{**options, "max_norm": adaptive})
    with pytest.raises(StructureError, match=r"grad_fn\.init"):
        grad_fn({"w": torch.zeros(2)}, {}, torch.ones(1, 2), KEY)
    with pytest.raises(ArgumentError, match="sensitivity="):
        privacy.noised(lambda *a: None, noise_multiplier=1.0, expected_batch_size=4)
    with pytest.raises(ArgumentError, match="quantile"):
        privacy.adaptive_norm(quantile=2.0, count_noise=1.0)
    with pytest.raises(ArgumentError, match="finite"):
        privacy.adaptive_norm(math.inf, count_noise=1.0)


def test_noise_is_added_before_the_sum_is_rounded():
    """513 examples of gradient one: bfloat16 has 512 and 516, which noise would then not hide."""
    params, x = {"w": torch.zeros(1, dtype=torch.bfloat16)}, torch.ones(513, 1).bfloat16()
    options = {"noise_multiplier": 0.0, "expected_batch_size": 511}
    for grad_fn in (
        privacy.dp_sgd(linear_loss, max_norm=1.0, **options),
        privacy.noised(persample.clipped(linear_loss, 1.0), **options),
        privacy.noised(accumulate(persample.clipped(linear_loss, 1.0), 3), **options),
    ):
        grads = grad_fn(params, {}, x, KEY).grads["w"]
        assert grads.dtype is torch.bfloat16
        assert grads.item() == 1.0078125  # 512 / 511 is 1
