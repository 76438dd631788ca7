"""The laws over every sampler: pure, deterministic, and the same numbers however it is run."""

from __future__ import annotations

import functools

import pytest
import torch

from funcloop import random
from funcloop._errors import ShapeError
from funcloop.random import key, split
from tests.laws import assert_deterministic, assert_jit_equal, assert_pure, assert_vmap_equal

N = 1300  # more than one group of lanes, and not a whole number of them
LOGITS = torch.linspace(-1, 1, 6).reshape(2, 3)
P = torch.linspace(0, 1, N)

SAMPLERS = {
    "bits": lambda k: random.bits(k, (N,)),
    "uniform": lambda k: random.uniform(k, (N,)),
    "uniform range": lambda k: random.uniform(k, (N,), minval=-P, maxval=2.0),
    "normal": lambda k: random.normal(k, (N,)),
    "truncated_normal": lambda k: random.truncated_normal(k, -P, 2.0, (N,)),
    "bernoulli": lambda k: random.bernoulli(k, 0.3, (N,)),
    "bernoulli tensor": lambda k: random.bernoulli(k, P),
    "randint": lambda k: random.randint(k, (N,), -3, 9),
    "randint tensor": lambda k: random.randint(k, (N,), (P * 9).long(), 10),
    "permutation": lambda k: random.permutation(k, N),
    "permutation tensor": lambda k: random.permutation(k, P),
    "choice": lambda k: random.choice(k, 9, (N,)),
    "choice weighted": lambda k: random.choice(k, P, (50,), replace=False, p=P + 1),
    "categorical": lambda k: random.categorical(k, LOGITS, (N,)),
    "gumbel": lambda k: random.gumbel(k, (N,)),
    "exponential": lambda k: random.exponential(k, (N,)),
    "cauchy": lambda k: random.cauchy(k, (N,)),
    "geometric": lambda k: random.geometric(k, 0.2, (N,)),
    "dropout": lambda k: random.dropout(k, P, 0.3),
    "dropout tensor": lambda k: random.dropout(k, P, torch.tensor(0.3)),
}
FLOATING = {
    "uniform": functools.partial(random.uniform, shape=(N,)),
    "normal": functools.partial(random.normal, shape=(N,)),
    "truncated_normal": functools.partial(random.truncated_normal, lower=-1, upper=2, shape=(N,)),
    "gumbel": functools.partial(random.gumbel, shape=(N,)),
    "exponential": functools.partial(random.exponential, shape=(N,)),
    "cauchy": functools.partial(random.cauchy, shape=(N,)),
    "geometric": functools.partial(random.geometric, p=0.3, shape=(N,)),
}
#: No function enters into these that a device may round in its own way.
EXACT = ("bits", "uniform", "bernoulli", "randint", "permutation", "choice")
#: These take one key; a batch of keys takes a vmap.
ONE_KEY = ("permutation tensor", "choice", "choice weighted", "dropout", "dropout tensor")
each = pytest.mark.parametrize("name", SAMPLERS)


def test_every_public_sampler_is_in_the_table():
    named = {name.split()[0] for name in SAMPLERS}
    assert named == set(random.__all__) - {"key", "split", "fold_in", "route"}


@each
def test_pure_and_deterministic(name):
    f = SAMPLERS[name]
    assert_pure(f, key(0))
    assert_deterministic(f, key(0))
    assert not torch.equal(f(key(0)), f(key(1)))


@each
def test_vmapped_equals_one_by_one(name):
    assert_vmap_equal(SAMPLERS[name], *[(k,) for k in split(key(0), 3)], rtol=0)


@each
def test_chunks_equal_the_whole(name):
    f, keys = SAMPLERS[name], split(key(0), 5)
    assert torch.equal(torch.vmap(f, chunk_size=2)(keys), torch.vmap(f)(keys))


@each
def test_jitted_equals_eager(name):
    assert_jit_equal(SAMPLERS[name], key(5))


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name not in ONE_KEY])
def test_a_batch_of_keys_is_the_stack(name):
    f, keys = SAMPLERS[name], split(key(0), 6).reshape(2, 3, 2)
    batched = f(keys)
    assert batched.shape[:2] == (2, 3)
    assert torch.equal(batched[1, 0], f(keys[1, 0]))


@pytest.mark.parametrize("name", ONE_KEY)
def test_one_key_where_one_is_needed(name):
    with pytest.raises(ShapeError, match="one key"):
        SAMPLERS[name](split(key(0), 3))


@pytest.mark.parametrize("name", FLOATING)
def test_dtypes_round_the_same_numbers(name):
    f = FLOATING[name]
    exact = f(key(3), dtype=torch.float64)
    for dtype, ulps in ((torch.float32, 2**-16), (torch.bfloat16, 2**-7), (torch.float16, 2**-9)):
        drawn = f(key(3), dtype=dtype)
        assert drawn.dtype is dtype
        # Nearly all: a rounding may turn a uniform's top into its bottom, or a `ceil` to the next.
        close = (drawn.double() - exact).abs() <= ulps * exact.abs().clamp(min=1)
        assert close.float().mean() > 0.99
    assert f(key(3)).dtype is torch.get_default_dtype()


@pytest.mark.parametrize("name", FLOATING)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_longer_draw_begins_with_the_shorter(name, dtype):
    f = FLOATING[name]
    long = f(key(3), dtype=dtype)
    for n in (1, 100, 700):
        torch.testing.assert_close(
            f(key(3), shape=(n,), dtype=dtype), long[:n], rtol=torch.finfo(dtype).eps, atol=0
        )


@pytest.mark.parametrize("name", FLOATING)
def test_the_device_is_the_keys(name, device):
    assert FLOATING[name](key(0).to(device)).device.type == device.type


@pytest.mark.parametrize("name", EXACT)
def test_every_device_draws_the_same_bits(name, device):
    drawn = SAMPLERS[name](key(7).to(device))
    assert drawn.device.type == device.type
    assert torch.equal(drawn.cpu(), SAMPLERS[name](key(7)))
