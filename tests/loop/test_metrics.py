"""Streaming metrics: scikit-learn's numbers, whatever the weights, the padding and the cuts."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from funcloop import estimators, optim, random, tree
from funcloop._errors import ArgumentError, ShapeError
from funcloop.compile import jit
from funcloop.loop import batches, evaluator, fit, metrics
from funcloop.stateless import stateless
from funcloop.step import TrainState, eval_step
from tests.cases import MLP, classification, generator
from tests.laws import assert_jit_equal, assert_trees_close, assert_trees_equal, assert_vmap_equal

CLASSES = 4


@st.composite
def predictions(draw: st.DrawFn, regression: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, targets and weights, some zero; at least two examples weigh something."""
    n = draw(st.integers(2, 12))
    seed, whole = draw(st.integers(0, 10**6)), draw(st.booleans())
    g = generator(seed)
    weight = torch.randint(0, 4, (n,), generator=g).double()
    weight = weight if whole else weight * torch.rand(n, generator=g, dtype=torch.float64)
    weight[:2] += 1
    if regression:
        shape = (n, *draw(st.sampled_from([(), (1,), (3,)])))
        offset = draw(st.sampled_from([0.0, 1e3]))
        target = torch.randn(shape, generator=g) + offset
        return target + torch.randn(shape, generator=g), target, weight
    scores = torch.randn(n, CLASSES, generator=g)
    return scores, torch.randint(0, draw(st.integers(1, CLASSES)), (n,), generator=g), weight


def sklearn(name: str, *args: Any, **options: Any) -> Any:
    learn = pytest.importorskip("sklearn.metrics", reason="the reference; of the extra `data`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes that were never predicted
        return getattr(learn, name)(*args, **options)


def kept(output: Tensor, target: Tensor, weight: Tensor) -> tuple[np.ndarray, ...]:
    """What weighs something: scikit-learn counts the classes of the rest too."""
    rows = weight != 0
    return output[rows].numpy(), target[rows].numpy(), weight[rows].numpy()


@settings(max_examples=20)
@given(predictions())
def test_confusion_and_what_follows_from_it_are_scikit_learns(data: tuple[Tensor, ...]):
    sums = metrics.confusion(*data)
    scores, true, weight = kept(*data)
    guess = scores.argmax(-1)
    whole = sklearn("confusion_matrix", true, guess, labels=range(CLASSES), sample_weight=weight)
    np.testing.assert_allclose(sums.matrix, whole, rtol=1e-12)
    got = sums.compute()
    for average in ("macro", "micro", "weighted"):
        for name in ("precision", "recall", "f1"):
            want = sklearn(f"{name}_score", true, guess, average=average, sample_weight=weight)
            number = getattr(sums, name)(average)
            assert float(number) == pytest.approx(want, rel=1e-12), name
            equal = average == "micro" or (name, average) == ("recall", "weighted")
            assert float(number) == pytest.approx(
                float(got["accuracy" if equal else f"{name}_{average}"])
            )
    want = sklearn("accuracy_score", true, guess, sample_weight=weight)
    assert float(got["accuracy"]) == pytest.approx(want, rel=1e-12)
    assert float(metrics.accuracy(*data).compute()) == pytest.approx(want, rel=1e-12)
    each = sklearn(
        "f1_score", true, guess, average=None, labels=range(CLASSES), sample_weight=weight
    )
    np.testing.assert_allclose(sums.f1(None), each, rtol=1e-12)


@settings(max_examples=20)
@given(predictions(), st.integers(1, CLASSES))
def test_top_k_is_scikit_learns(data: tuple[Tensor, ...], k: int):
    scores, true, weight = kept(*data)
    options = {"k": k, "labels": range(CLASSES), "sample_weight": weight}
    want = sklearn("top_k_accuracy_score", true, scores, **options)
    assert float(metrics.top_k(k)(*data).compute()) == pytest.approx(want, rel=1e-12)
    first = metrics.top_k(1)(*data).compute()
    assert torch.equal(first, metrics.accuracy(*data).compute())


@settings(max_examples=20)
@given(predictions(regression=True))
def test_errors_of_regression_are_scikit_learns(data: tuple[Tensor, ...]):
    output, target, weight = (x.astype(np.float64) for x in kept(*data))
    for name, metric in {
        "mean_absolute_error": metrics.mae,
        "root_mean_squared_error": metrics.rmse,
        "r2_score": metrics.r2,
    }.items():
        want = sklearn(name, target, output, sample_weight=weight)
        assert float(metric(*data).compute()) == pytest.approx(want, rel=1e-9, abs=1e-9), name


@settings(max_examples=20)
@given(predictions())
def test_perplexity_is_the_exponential_of_scikit_learns_log_loss(data: tuple[Tensor, ...]):
    scores, true, weight = kept(*data)
    chances = torch.tensor(scores).double().softmax(-1).numpy()
    loss = sklearn("log_loss", true, chances, labels=range(CLASSES), sample_weight=weight)
    got = float(metrics.perplexity(*data).compute())
    assert got == pytest.approx(math.exp(loss), rel=1e-6)  # logits are float32


BY_CLASS = {
    "accuracy": metrics.accuracy,
    "top_k": metrics.top_k(2),
    "confusion": metrics.confusion,
    "perplexity": metrics.perplexity,
    "loss": metrics.loss(F.cross_entropy),
    "mean": metrics.mean(estimators.accuracy),
}
BY_VALUE = {"mae": metrics.mae, "rmse": metrics.rmse, "r2": metrics.r2}
ALL = {**BY_CLASS, **BY_VALUE}


def sample(name: str, n: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    g = generator(3)
    weight = torch.rand(n, generator=g).double()
    if name in BY_VALUE:
        return torch.randn(n, 2, generator=g), torch.randn(n, 2, generator=g), weight
    return torch.randn(n, CLASSES, generator=g), torch.arange(n) % CLASSES, weight


def number(sums: Any) -> Any:
    return sums.compute()


@pytest.mark.parametrize("name", ALL)
def test_what_weighs_nothing_never_counts(name: str):
    output, target, weight = sample(name)
    want = ALL[name](output, target, weight)
    worst = torch.full_like(output[:3], math.nan)
    worst[1] = math.inf
    bad = torch.full_like(target[:3], -100)
    nothing = torch.zeros(3, dtype=weight.dtype)
    got = ALL[name](
        *(
            torch.cat(pair)
            for pair in zip((output, target, weight), (worst, bad, nothing), strict=True)
        )
    )
    assert_trees_close(got, want)
    only_padding = ALL[name](worst, bad, nothing)
    assert_trees_close(want.combine(only_padding), want)
    assert_trees_close(only_padding.combine(want), want)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("cuts", [(4,), (1, 2, 6), (9,)])
def test_sums_form_a_monoid(name: str, cuts: tuple[int, ...]):
    data = sample(name)
    parts = zip(*(x.tensor_split(cuts) for x in data), strict=True)
    sums = [ALL[name](*part) for part in parts if len(part[0])]
    joined = functools.reduce(lambda a, b: a.combine(b), sums)
    backwards = functools.reduce(lambda a, b: a.combine(b), reversed(sums))
    assert_trees_close(joined, ALL[name](*data))
    assert_trees_close(backwards, joined)


@pytest.mark.parametrize("name", ALL)
def test_without_weight_every_example_weighs_one(name: str):
    output, target, weight = sample(name)
    assert_trees_close(ALL[name](output, target, None), ALL[name](output, target, weight * 0 + 1))


@pytest.mark.parametrize("name", ALL)
def test_nothing_at_all_is_not_a_number(name: str):
    output, target, weight = sample(name)
    value = number(ALL[name](output, target, weight * 0))
    value = value["accuracy"] if isinstance(value, dict) else value
    assert value.isnan()


@pytest.mark.parametrize("name", ALL)
def test_under_jit_and_vmap(name: str):
    def whole(output: Tensor, target: Tensor, weight: Tensor) -> Any:
        sums = ALL[name](output, target, weight)
        return sums, sums.combine(sums).compute()

    data = sample(name)
    assert_jit_equal(whole, *data, backend="aot_eager")
    assert_vmap_equal(whole, data, tuple(x.roll(1, 0) for x in data))
    members = tuple(torch.stack([x, 2 * x]) for x in data[::2])
    many = torch.func.vmap(ALL[name], (0, None, 0))(members[0], data[1], members[1])
    alone = ALL[name](2 * data[0], data[1], 2 * data[2])
    assert_trees_close(torch.func.vmap(lambda s: s.compute())(many), many.compute())
    assert_trees_close(tree.map(lambda x: x[1], many.compute()), alone.compute())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_sums_are_float64_on_the_data_s_device(name: str, dtype: torch.dtype, device: torch.device):
    output, target, weight = (x.to(device) for x in sample(name))
    target = target.to(dtype) if name in BY_VALUE else target
    for leaf in ALL[name](output.to(dtype), target, weight):
        assert leaf.dtype == torch.float64
        assert leaf.device.type == device.type


@pytest.mark.parametrize("name", [name for name in BY_CLASS if name != "loss"])
def test_tokens_with_a_mask(name: str):
    g = generator(1)
    logits, tokens = (
        torch.randn(3, 5, CLASSES, generator=g),
        torch.randint(CLASSES, (3, 5), generator=g),
    )
    mask = torch.arange(5) < torch.tensor([[5], [2], [0]])
    logits[~mask], padded = math.nan, tokens.masked_fill(~mask, -100)
    got = BY_CLASS[name](logits, padded, mask)
    assert_trees_close(got, BY_CLASS[name](logits[mask], tokens[mask], None))
    assert_trees_close(got, BY_CLASS[name](logits, padded, mask.float()))


def test_a_weight_of_an_example_weighs_each_of_its_tokens_alike():
    logits, tokens = (
        torch.randn(2, 3, 4, generator=generator()),
        torch.tensor([[0, 1, 2], [3, 3, 3]]),
    )
    weight = torch.tensor([1.0, 3.0])
    for metric in (metrics.accuracy, metrics.perplexity):
        by_token = metric(logits, tokens, weight[:, None].expand(2, 3)).compute()
        assert_trees_close(metric(logits, tokens, weight).compute(), by_token)


@pytest.mark.parametrize("name", ["accuracy", "top_k", "confusion", "perplexity"])
def test_a_target_that_is_no_class_is_seen(name: str):
    output, target, weight = sample(name)
    for wrong in (-100, CLASSES):
        value = number(
            BY_CLASS[name](output, target.clone().index_fill(0, torch.tensor([2]), wrong), weight)
        )
        for one in value.values() if isinstance(value, dict) else [value]:
            assert one.isnan()


def test_equal_scores_and_nan_scores():
    scores = torch.tensor([[1.0, 1.0, 0.0], [math.nan, 0.0, 1.0]])
    assert metrics.top_k(1)(scores, torch.tensor([0, 2])).compute() == 1
    assert metrics.top_k(1)(scores[:1], torch.tensor([1])).compute() == 0
    assert metrics.top_k(2)(scores[:1], torch.tensor([1])).compute() == 1
    assert metrics.top_k(3)(scores[1:], torch.tensor([0])).compute() == 0  # a NaN is no score


def test_r2_of_a_constant_target_and_of_a_large_mean():
    constant = torch.full((7,), 0.1)
    weight = torch.rand(7, generator=generator())
    assert metrics.r2(constant, constant, weight).compute() == 1
    assert metrics.r2(constant + 1, constant, weight).compute() == 0
    joined = metrics.r2(constant, constant).combine(metrics.r2(constant, constant, weight))
    assert joined.compute() == 1
    noise = torch.randn(100, generator=generator(), dtype=torch.float64)
    far = [metrics.r2(noise.roll(1) / 2 + m, noise + m).compute() for m in (0.0, 1e7)]
    assert far[1] == pytest.approx(float(far[0]), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.mae(torch.ones(3, 1), torch.ones(3)), r"output \(3, 1\).*squeeze"),
        (lambda: metrics.accuracy(torch.ones(2, 4, 3), torch.ones(2, 3)), "class dimension"),
        (lambda: metrics.confusion(torch.ones(2, 3), torch.eye(2, 3)), "not one-hot"),
        (
            lambda: metrics.r2(torch.ones(3), torch.ones(3), torch.ones(2)),
            r"weight of shape \(2,\)",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call: Callable[[], object], message: str):
    with pytest.raises(ShapeError, match=message):
        call()


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ArgumentError, match="k=0"):
        metrics.top_k(0)
    with pytest.raises(ArgumentError, match="'binary'"):
        metrics.confusion(torch.eye(2), torch.tensor([0, 1])).f1("binary")  # type: ignore[arg-type]


def trained() -> tuple[Any, TrainState]:
    model = stateless(MLP())
    return model, TrainState.create(*model.init(), optim.sgd(0.1), key=random.key(3))


def test_scores_agree_with_an_eval_step_and_with_any_cut():
    model, state = trained()
    arrays = classification(23, 4)
    score = metrics.score_step(model, {"loss": metrics.loss(F.cross_entropy), **FOUR})
    whole = evaluator(score, batches(None, arrays, 23))(state)
    evaluate = eval_step(estimators.supervised(model, F.cross_entropy, train=False))
    estimate = evaluator(evaluate, batches(None, arrays, 7))(state)
    for batch_size in (1, 5, 50):
        got = evaluator(score, batches(None, arrays, batch_size))(state)
        assert got == pytest.approx(whole, rel=1e-6)
    assert {name: whole[name] for name in ("loss", "accuracy")} == pytest.approx(estimate, rel=1e-6)
    assert len(whole) == 9


FOUR = {"accuracy": metrics.accuracy, "top2": metrics.top_k(2), "classes": metrics.confusion}


def test_one_graph_scores_a_run():
    model, state = trained()
    score = metrics.score_step(model, FOUR)
    jitted = jit(score, backend="aot_eager")
    data = batches(None, classification(23, 4), 8)
    want, got = evaluator(score, data)(state), evaluator(jitted, data)(state)
    assert got == pytest.approx(want)
    assert jitted.traces == 1
    step = lambda state, batch: (state, {"loss": torch.tensor(0.0)})  # noqa: E731
    options = {"epochs": 1, "progress": False}
    result = fit(state, step, data, evaluate=evaluator(jitted, data), **options)  # type: ignore[arg-type]
    assert result.history[-1]["val/classes/f1_macro"] == want["classes/f1_macro"]


def test_scores_are_pure_and_vmap_over_members():
    model, state = trained()
    score = metrics.score_step(model, FOUR)
    x, y = classification(6, 4)
    params = {name: torch.stack([p, 2 * p]) for name, p in state.params.items()}
    members = torch.func.vmap(lambda p: score(state._replace(params=p), (x, y)))(params)
    for i in (0, 1):
        alone = score(state._replace(params={n: p[i] for n, p in params.items()}), (x, y))
        one = {name: value[i] for name, value in members.compute().items()}
        assert_trees_close(one, alone.compute())
    assert_trees_equal(score(state, (x, y)), score(state, (x, y)))
