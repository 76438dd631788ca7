import pytest
import torch

from funcloop import random, tree
from funcloop._errors import ArgumentError
from funcloop._types import Aux
from funcloop.estimators import value_and_grad
from funcloop.meta import es_grad
from tests.laws import (
    assert_deterministic,
    assert_jit_equal,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
)

KEY = random.key(3)


def loss_fn(params, buffers, batch, key):
    x, weight = batch
    losses = (params["w"] * x).sum(-1) + params["b"]
    return losses, Aux({"n": buffers["n"] + 1}, {"double": 2 * losses}, weight)


PARAMS = {"w": torch.tensor([1.0, -2.0]), "b": torch.tensor(0.5)}
BUFFERS = {"n": torch.tensor(0)}
BATCH = torch.tensor([[1.0, 2.0], [3.0, -1.0], [9.0, 9.0]]), torch.tensor([1.0, 3.0, 0.0])


def test_all_but_the_gradient_equals_the_plain_estimate():
    got = assert_pure(es_grad(loss_fn), PARAMS, BUFFERS, BATCH, KEY)
    want = value_and_grad(loss_fn)(PARAMS, BUFFERS, BATCH, KEY)
    assert_trees_equal(got._replace(grads=None), want._replace(grads=None))


@pytest.mark.parametrize("power", [1, 2])
def test_mean_is_the_gradient_of_linear_and_quadratic_losses(power):
    """The estimate's error is at most 5 standard errors, measured over independent keys."""

    def raised(params, buffers, batch, key):
        losses, aux = loss_fn(params, buffers, batch, key)
        return losses**power, aux._replace(metrics={})

    grad_fn = es_grad(raised, sigma=0.3, pairs=100)
    many = torch.func.vmap(lambda key: grad_fn(PARAMS, BUFFERS, BATCH, key).grads)(
        random.split(KEY, 100)
    )
    want = value_and_grad(raised)(PARAMS, BUFFERS, BATCH, KEY).grads
    for path, sample in tree.items(many):
        error = (sample.mean(0) - want[path]).abs()
        assert (error < 5 * sample.std(0) / 10).all(), path


def test_antithetic_pairs_cancel_an_even_loss_exactly():
    grads = es_grad(lambda p, b, x, key: p**2 * x, pairs=3)(
        torch.tensor(0.0), {}, torch.tensor([1.0]), KEY
    ).grads
    assert grads == 0


def test_a_step_function_gets_a_gradient_where_autograd_gives_none():
    def steps(p, buffers, x, key):
        return (p * x).round()

    plain = value_and_grad(steps)(torch.tensor(0.3), {}, torch.ones(1), KEY).grads
    smooth = es_grad(steps, sigma=1.0, pairs=1000)(torch.tensor(0.3), {}, torch.ones(1), KEY).grads
    assert plain == 0
    assert abs(smooth - 1) < 0.2


def test_laws():
    grad_fn = es_grad(loss_fn, pairs=6)
    assert_deterministic(grad_fn, PARAMS, BUFFERS, BATCH, KEY)
    assert_jit_equal(grad_fn, PARAMS, BUFFERS, BATCH, KEY)
    chunked = es_grad(loss_fn, pairs=6, chunk=4)(PARAMS, BUFFERS, BATCH, KEY)
    assert_trees_close(chunked, grad_fn(PARAMS, BUFFERS, BATCH, KEY))
    other = grad_fn(PARAMS, BUFFERS, BATCH, random.key(4))
    assert not torch.equal(other.grads["w"], chunked.grads["w"])
    half = es_grad(lambda p, b, x, key: p["w"].float() * x, pairs=2)(
        {"w": torch.tensor(1.0, dtype=torch.bfloat16)}, {}, torch.ones(2), KEY
    )
    assert half.grads["w"].dtype is torch.bfloat16


@pytest.mark.parametrize("options", [{"sigma": 0.0}, {"pairs": 0}, {"chunk": -1}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        es_grad(loss_fn, **options)
