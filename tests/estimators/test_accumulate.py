"""A batch in parts is the batch: for any weights, sizes and estimators, in the memory of a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from funcloop import meta, persample, privacy, random, tree
from funcloop._errors import ArgumentError, ShapeError
from funcloop._sum import combine_all
from funcloop.compile import jit
from funcloop.estimators import Aux, Estimate, accumulate, supervised, value_and_grad
from funcloop.optim import sgd
from funcloop.stateless import stateless
from funcloop.step import TrainState, train_step
from tests.cases import MLP, ConvNet, classification
from tests.estimators.memory import peak
from tests.laws import (
    assert_deterministic,
    assert_jit_equal,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
)

KEY = random.key(0)
PARTS = [1, 2, 3, 7]


def tokens(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sequences of 5 tokens of which 0 to 5 are valid, (n, 5, 3) and (n, 5)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, 3, generator=generator, dtype=torch.float64)
    length = torch.randint(0, 6, (n, 1), generator=generator)
    return x, torch.arange(5) < length


def token_loss(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
    x, valid = batch
    losses = torch.tanh(x @ params["w"] + params["b"]).square() * valid
    count = valid.sum(1).double()
    mean = losses.sum(1) / count.clamp(min=1)
    return mean, Aux({"seen": buffers["seen"] + 1}, {"twice": 2 * mean}, count)


def token_params() -> Any:
    return tree.cast({"w": torch.tensor([0.3, -1.0, 0.7]), "b": torch.tensor(0.1)}, torch.float64)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("examples", [1, 5, 7, 16])
def test_b05_parts_are_the_whole_for_token_weights(parts: int, examples: int) -> None:
    grad_fn = value_and_grad(token_loss)
    args = token_params(), {"seen": torch.tensor(0)}, tokens(examples), KEY
    want = grad_fn(*args)
    assert_trees_close(accumulate(grad_fn, parts)(*args), want, rtol=1e-13)
    assert_trees_close(accumulate(accumulate(grad_fn, parts), 2)(*args), want, rtol=1e-13)


def test_b05_the_values() -> None:
    def loss_fn(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
        slope, valid = batch  # (B, T)
        count = valid.sum(1)
        return (params * slope * valid).sum(1) / count.clamp(min=1), Aux(buffers, {}, count)

    def grads(*rows: tuple[list[float], list[int]]) -> float:
        slope, valid = (torch.tensor(column) for column in zip(*rows, strict=True))
        grad_fn = accumulate(value_and_grad(loss_fn), microbatches=2)
        estimate = grad_fn(torch.tensor(1.0), {}, (slope, valid.float()), KEY)
        assert estimate.weight == valid.sum()
        return estimate.grads.item()

    a = [10.0, 0.0, 0.0], [1, 0, 0]
    b = [2.0, 2.0, 2.0], [1, 1, 1]
    c = [5.0, 5.0, 5.0], [0, 0, 0]
    assert grads(a, b) == 4.0
    assert grads(c, b) == 2.0
    assert grads(c, c) == 0.0


def test_b12_low_precision_gradients_are_added_in_float32() -> None:
    """256, then 256 times 1: a bfloat16 sum would stay at 256, a mean in bfloat16 at 0.996."""

    def grad_fn(params: Any, buffers: Any, batch: Tensor, key: Any) -> Estimate:
        one = torch.ones(())
        return Estimate(batch, batch[0].float(), {"b": batch}, {}, one)

    values = torch.ones(257, dtype=torch.bfloat16)
    values[0] = 256
    estimate = accumulate(grad_fn, 257)(values[:1], {}, values, KEY)
    assert estimate.grads.dtype is torch.bfloat16
    assert estimate.grads == torch.tensor(512 / 257, dtype=torch.bfloat16)
    assert estimate.loss == torch.tensor(512 / 257)
    assert estimate.buffers["b"] == estimate.grads


@given(st.lists(st.sampled_from([0.0, 1.0, 3.0, 0.25, 17.0]), min_size=1, max_size=6))
def test_combine_all_is_the_fold_of_combine(weights: list[float]) -> None:
    def estimate(n: int, weight: float) -> Estimate:
        value = torch.tensor(1.0 + n, dtype=torch.float64)
        buffers = {"mean": value, "count": torch.tensor(n), "frozen": torch.tensor(0.1)}
        return Estimate({"w": value}, value, buffers, {"m": -value}, torch.tensor(weight))

    parts = [estimate(n, weight) for n, weight in enumerate(weights)]
    folded = parts[0]
    for part in parts[1:]:
        folded = folded.combine(part)
    together = combine_all(parts)
    assert_trees_close(together, folded, rtol=1e-6)
    assert together.buffers["frozen"] == torch.tensor(0.1)


def test_frozen_parameters_stay_bit_equal() -> None:
    model = stateless(MLP(0.0))
    params, buffers = model.freeze(*model.init(), "hidden")
    buffers = tree.map(lambda b: b / 3, buffers)
    batch = (*classification(7, 4), torch.tensor([1.0, 3.0, 0.7, 0.1, 5.0, 0.3, 0.9]))
    grad_fn = accumulate(value_and_grad(supervised(model, F.cross_entropy)), 3)
    for f in (grad_fn, jit(grad_fn, backend="aot_eager")):
        assert_trees_equal(f(params, buffers, batch, KEY).buffers, buffers)
    copying = value_and_grad(
        lambda p, b, x, k: ((x @ p["w"]).sin(), Aux({"f": b["f"].clone()}, {}, x[:, 0].abs()))
    )
    frozen = torch.randn(50)
    estimate = accumulate(copying, 3)({"w": torch.ones(4)}, {"f": frozen}, batch[0], KEY)
    assert_trees_equal(estimate.buffers["f"], frozen)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_laws(dtype: torch.dtype) -> None:
    def loss_fn(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
        noise = random.normal(key, batch.shape, dtype=batch.dtype)
        return (params["w"] * (batch + noise)).sin(), Aux(buffers, {"x": batch})

    grad_fn = accumulate(value_and_grad(loss_fn), 3)
    args = {"w": torch.tensor(0.5, dtype=dtype)}, {}, torch.arange(7, dtype=dtype), KEY
    estimate = assert_pure(grad_fn, *args)
    assert estimate.grads["w"].dtype is dtype
    assert_deterministic(grad_fn, *args)
    if dtype is torch.float32:
        assert_jit_equal(grad_fn, *args)


def test_part_n_draws_from_the_key_folded_with_n() -> None:
    seen: list[Tensor] = []

    def grad_fn(params: Any, buffers: Any, batch: Tensor, key: Tensor) -> Estimate:
        seen.append(key)
        return Estimate(params, params, buffers, {}, torch.ones(()))

    accumulate(grad_fn, 3)(torch.ones(()), {}, torch.ones(6), KEY)
    assert_trees_equal(torch.stack(seen), random.fold_in(KEY, torch.arange(3)))


def test_sizes_are_even_and_no_part_is_empty() -> None:
    sizes: list[int] = []

    def grad_fn(params: Any, buffers: Any, batch: Tensor, key: Tensor) -> Estimate:
        sizes.append(len(batch))
        return Estimate(params, params, buffers, {}, torch.tensor(float(len(batch))))

    for n in (7, 2, 0):
        accumulate(grad_fn, 3)(torch.ones(()), {}, torch.ones(n), KEY)
    assert sizes == [2, 2, 3, 1, 1, 0]


def test_running_statistics_move_once_a_batch() -> None:
    torch.manual_seed(0)
    model = stateless(ConvNet())
    params, buffers = model.init()
    x, y = classification(8, 1, 8, 8, classes=10)
    grad_fn = value_and_grad(supervised(model, F.cross_entropy))
    whole = grad_fn(params, buffers, (x, y), KEY).buffers
    parts = accumulate(grad_fn, 4)(params, buffers, (x, y), KEY).buffers
    assert parts["norm.num_batches_tracked"] == 1
    torch.testing.assert_close(parts["norm.running_mean"], whole["norm.running_mean"])

    def frozen(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
        inputs, target = batch
        train = {"norm": False, "dropout": False, "": True}
        logits, buffers = model.apply(params, buffers, inputs, key=key, train=train)
        return F.cross_entropy(logits, target, reduction="none"), Aux(buffers)

    plain = value_and_grad(frozen)
    assert_trees_close(
        accumulate(plain, 3)(params, buffers, (x, y), KEY),
        plain(params, buffers, (x, y), KEY),
        rtol=1e-5,
    )


def test_one_graph_serves_a_whole_run() -> None:
    torch.manual_seed(0)
    model, tx = stateless(MLP(0.0)), sgd(0.1)
    grad_fn = value_and_grad(supervised(model, F.cross_entropy))
    state = TrainState.create(*model.init(), tx, key=KEY)
    plain = train_step(grad_fn, tx)
    step = jit(train_step(accumulate(grad_fn, 3), tx), backend="aot_eager")
    batch, want, got = classification(10, 4), state, state
    for _ in range(3):
        (got, metrics), (want, expected) = step(got, batch), plain(want, batch)
        assert_trees_close(metrics, expected, rtol=1e-5)
    assert step.traces == 1
    assert_trees_close(got, want, rtol=1e-5)


def test_one_graph_serves_batches_of_all_sizes() -> None:
    grad_fn = accumulate(value_and_grad(token_loss), 3)
    compiled = jit(grad_fn, backend="aot_eager", dynamic=2)
    for examples in (7, 8, 12):
        args = token_params(), {"seen": torch.tensor(0)}, tokens(examples), KEY
        assert_trees_close(compiled(*args), grad_fn(*args), rtol=1e-12)
    assert compiled.traces == 1


def test_vmap_and_a_gradient_go_through_it() -> None:
    grad_fn = accumulate(value_and_grad(token_loss), 3)
    plain = value_and_grad(token_loss)
    batch, buffers = tokens(7), {"seen": torch.tensor(0)}

    def loss_after(grad_fn: Any, params: Any) -> Tensor:
        new = tree.sub(params, grad_fn(params, buffers, batch, KEY).grads)
        return grad_fn(new, buffers, batch, KEY).loss

    meta = torch.func.grad(loss_after, argnums=1)
    assert_trees_close(meta(grad_fn, token_params()), meta(plain, token_params()), rtol=1e-12)
    many = tree.map(lambda p: torch.stack([p, 2 * p]), token_params())
    mapped = torch.func.vmap(grad_fn, (0, None, None, None))(many, buffers, batch, KEY)
    want = torch.func.vmap(plain, (0, None, None, None))(many, buffers, batch, KEY)
    assert_trees_close(mapped, want, rtol=1e-12)


def test_clipping_and_noise_keep_their_bounds() -> None:
    clipped = persample.clipped(lambda p, b, x, k: x @ p, max_norm=1.0)
    x = torch.tensor([[6.0, 8.0], [0.0, 1.0], [3.0, 4.0]])
    args = torch.zeros(2), {}, x, KEY
    parts = accumulate(clipped, 2)
    assert_trees_close(parts(*args), clipped(*args))
    noised = privacy.noised(parts, noise_multiplier=0.0, expected_batch_size=3)
    assert_trees_close(noised(*args).grads, clipped(*args).grads)
    with pytest.raises(ArgumentError, match=r"once for a logical batch.*inside of it"):
        accumulate(noised, 2)
    users = persample.clipped(lambda p, b, x, k: x @ p, max_norm=1.0, unit_axis=1)
    with pytest.raises(ArgumentError, match="units lie along dimension 1"):
        accumulate(users, 2)


@pytest.mark.parametrize("on_nonfinite", ["propagate", "skip"])
def test_examples_are_counted_whatever_they_weigh(on_nonfinite: Any) -> None:
    """A part in which every example is skipped weighs nothing; its share still counts."""

    def loss_fn(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
        x, weight = batch
        return x @ params, Aux(buffers, {}, weight)

    x = torch.ones(7, 2)
    x[0], x[3] = float("nan"), float("inf")
    args = torch.zeros(2), {}, (x, torch.tensor([9.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0])), KEY
    clipped = persample.clipped(loss_fn, max_norm=1.0, on_nonfinite=on_nonfinite)
    assert_trees_close(clipped(*args).metrics["nonfinite"], torch.tensor(2 / 7))
    for grad_fn in (accumulate(clipped, 7), accumulate(accumulate(clipped, 3), 2)):
        noised = privacy.noised(grad_fn, noise_multiplier=0.0, expected_batch_size=7)
        for f in (grad_fn, noised, jit(grad_fn, backend="aot_eager")):
            assert_trees_close(f(*args).metrics["nonfinite"], torch.tensor(2 / 7))


def test_a_schedule_of_clipping_counts_batches() -> None:
    clipped = persample.clipped(lambda p, b, x, k: x @ p, max_norm=lambda count: 1.0 + count)
    grad_fn = accumulate(clipped, 3)
    buffers = grad_fn.init({})  # type: ignore[attr-defined]  # carried over from `clipped`
    estimate = grad_fn(torch.zeros(2), buffers, torch.ones(5, 2), KEY)
    assert estimate.buffers.calls == 1


def test_what_cannot_be_cut_is_refused() -> None:
    grad_fn = accumulate(value_and_grad(lambda p, b, x, k: p * x[0]), 2)
    with pytest.raises(ShapeError, match=r"0 \(3,\), 1 \(2,\).*into buffers"):
        grad_fn(torch.ones(()), {}, (torch.ones(3), torch.ones(2)), KEY)
    with pytest.raises(ShapeError, match=r"1 \(\)"):
        grad_fn(torch.ones(()), {}, (torch.ones(3), torch.ones(())), KEY)
    with pytest.raises(ShapeError, match="without leaves"):
        grad_fn(torch.ones(()), {}, (), KEY)
    with pytest.raises(ArgumentError, match="at least one part"):
        accumulate(grad_fn, 0)


def test_an_averaged_loss_is_refused_unless_it_says_what_it_weighs() -> None:
    loss_fn = lambda p, b, x, k: (p * x).mean()  # noqa: E731
    averaged = value_and_grad(loss_fn)
    assert averaged(torch.ones(()), {}, torch.ones(3), KEY).grads == 1
    with pytest.raises(ShapeError, match="accumulation needs one loss"):
        accumulate(averaged, 2)(torch.ones(()), {}, torch.ones(3), KEY)
    with pytest.raises(ShapeError, match="accumulation needs one loss"):
        accumulate(meta.es_grad(loss_fn), 2)(torch.ones(()), {}, torch.ones(3), KEY)
    weighed = value_and_grad(
        lambda p, b, x, k: ((p * x).mean(), Aux(b, {}, torch.tensor(float(len(x)))))
    )
    args = torch.ones(()), {}, torch.tensor([1.0, 2.0, 6.0]), KEY
    assert accumulate(weighed, 2)(*args).grads == 3


@pytest.mark.parametrize("compiled", [False, True])
def test_it_holds_the_activations_of_one_part(compiled: bool, tmp_path: Path) -> None:
    """A compiler left to itself runs all forward passes first, and then holds them all."""
    examples, width, parts = 8192, 64, 4
    grad_fn = value_and_grad(lambda p, b, x, k: torch.tanh(x @ p[0]) @ p[1])
    args = [torch.randn(8, width), torch.randn(width)], {}, torch.randn(examples, 8), KEY
    f = accumulate(grad_fn, parts)
    of_one = 4 * width * examples // parts  # bytes of a hidden activation
    assert peak(jit(f) if compiled else f, *args, folder=tmp_path) < 3.5 * of_one


def test_losses_inside_of_a_task_may_be_averaged() -> None:
    """Each task weighs one, however its own loss is taken; recomputed steps are no exception."""
    grad_fn = meta.maml(lambda p, b, x, k: (p * x).square().mean(), sgd(0.1), steps=4, remat=True)
    args = torch.ones(()), {}, (torch.randn(5, 3), torch.randn(5, 3)), KEY
    assert_trees_close(accumulate(grad_fn, 2)(*args), grad_fn(*args), rtol=1e-5)
