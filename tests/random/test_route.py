"""route: every random call from the key, none from torch's generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from funcloop import random
from funcloop._errors import ArgumentError, FuncloopError, RandomnessError, ShapeError
from funcloop.random import fold_in, key, route, split
from tests.laws import assert_jit_equal, assert_trees_equal, assert_vmap_equal

X = torch.linspace(-2, 2, 6 * 4 * 8).reshape(6, 4, 8)
IMAGE, VOLUME = (
    torch.linspace(-1, 1, 256).reshape(1, 4, 8, 8),
    torch.linspace(-1, 1, 1536).reshape(1, 3, 8, 8, 8),
)
P = torch.full((5, 40), 0.4)


def module(make: Callable[[], nn.Module], *args: Tensor) -> Callable[[], Any]:
    """Calls a module in training mode that is made outside of the route."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = make().train()
    return lambda: made(*args)


#: Every way to draw, in a call without arguments.
CALLS: dict[str, Callable[[], Any]] = {
    "F.dropout": lambda: F.dropout(X, 0.3),
    "F.dropout inplace": lambda: F.dropout(X.clone(), 0.3, inplace=True),
    "F.dropout1d": lambda: F.dropout1d(X, 0.3),
    "F.dropout1d unbatched": lambda: F.dropout1d(X[0], 0.3),
    "F.dropout2d": lambda: F.dropout2d(IMAGE, 0.3),
    "F.dropout2d inplace": lambda: F.dropout2d(IMAGE.clone(), 0.3, inplace=True),
    "F.dropout3d": lambda: F.dropout3d(VOLUME, 0.3),
    "F.alpha_dropout": lambda: F.alpha_dropout(X, 0.3, training=True),
    "F.alpha_dropout inplace": lambda: F.alpha_dropout(X.clone(), 0.3, True, True),
    "F.feature_alpha_dropout": lambda: F.feature_alpha_dropout(X, 0.3, training=True),
    "F.rrelu": lambda: F.rrelu(X, training=True),
    "F.rrelu inplace": lambda: F.rrelu(X.clone(), training=True, inplace=True),
    "F.gumbel_softmax": lambda: F.gumbel_softmax(X),
    "F.gumbel_softmax hard": lambda: F.gumbel_softmax(X, hard=True),
    "F.fractional_max_pool2d": lambda: F.fractional_max_pool2d(IMAGE, 2, output_size=5),
    "F.fractional_max_pool2d ratio": lambda: F.fractional_max_pool2d(
        IMAGE, 2, output_ratio=(0.7, 0.7), return_indices=True
    ),
    "F.fractional_max_pool3d": lambda: F.fractional_max_pool3d(VOLUME, 2, output_size=5),
    "F.sdpa": lambda: F.scaled_dot_product_attention(X, X, X, dropout_p=0.3),
    "nn.Dropout": module(lambda: nn.Dropout(0.3), X),
    "nn.MultiheadAttention": module(lambda: nn.MultiheadAttention(8, 2, dropout=0.3), X, X, X),
    "nn.TransformerEncoderLayer": module(lambda: nn.TransformerEncoderLayer(8, 2, 16), X),
    "nn.TransformerDecoderLayer": module(lambda: nn.TransformerDecoderLayer(8, 2, 16), X, X),
    "nn.RReLU": module(nn.RReLU, X),
    "nn.AlphaDropout": module(nn.AlphaDropout, X),
    "nn.FractionalMaxPool2d": module(lambda: nn.FractionalMaxPool2d(2, output_size=5), IMAGE),
    "torch.dropout": lambda: torch.dropout(X, 0.3, True),
    "torch.dropout_": lambda: torch.dropout_(X.clone(), 0.3, True),
    "torch.feature_dropout": lambda: torch.feature_dropout(X, 0.3, True),
    "torch.native_dropout": lambda: torch.native_dropout(X, 0.3, True),
    "torch.rrelu": lambda: torch.rrelu(X, 0.1, 0.3, True),
    "torch.rand": lambda: torch.rand(3, 4),
    "torch.rand size": lambda: torch.rand(size=(3, 4), dtype=torch.float64),
    "torch.rand 0-d": lambda: torch.rand([]),
    "torch.rand list": lambda: torch.rand([3, 4]),
    "torch.randn": lambda: torch.randn((3, 4)),
    "torch.rand_like": lambda: torch.rand_like(X),
    "torch.rand_like keyword": lambda: torch.rand_like(input=X),
    "torch.randn_like": lambda: torch.randn_like(
        X, dtype=torch.float64, memory_format=torch.preserve_format
    ),
    "torch.randint": lambda: torch.randint(50, (30,)),
    "torch.randint range": lambda: torch.randint(-50, 50, (30,), dtype=torch.int32),
    "torch.randint keywords": lambda: torch.randint(low=2, high=50, size=(30,)),
    "torch.randint high": lambda: torch.randint(high=50, size=(30,)),
    "torch.randint_like": lambda: torch.randint_like(X, 50),
    "torch.randint_like range": lambda: torch.randint_like(X, -50, 50),
    "torch.randperm": lambda: torch.randperm(30),
    "torch.normal": lambda: torch.normal(X, 2.0),
    "torch.normal std": lambda: torch.normal(1.0, X.abs()),
    "torch.normal both": lambda: torch.normal(X, X.abs()),
    "torch.normal size": lambda: torch.normal(1.0, 2.0, (30,)),
    "torch.normal default": lambda: torch.normal(mean=X),
    "torch.bernoulli": lambda: torch.bernoulli(P),
    "torch.bernoulli p": lambda: torch.bernoulli(P, 0.5),
    "Tensor.bernoulli": lambda: P.bernoulli(),
    "Tensor.bernoulli p": lambda: P.bernoulli(0.2),
    "torch.multinomial": lambda: torch.multinomial(P, 30),
    "torch.multinomial replacement": lambda: torch.multinomial(P[0], 60, replacement=True),
    "Tensor.multinomial": lambda: P.multinomial(30),
    "Tensor.uniform_": lambda: torch.empty(30).uniform_(-1, 2),
    "Tensor.uniform_ keywords": lambda: torch.empty(30).uniform_(**{"from": -1, "to": 2}),
    "Tensor.normal_": lambda: torch.empty(30).normal_(1, std=2),
    "Tensor.log_normal_": lambda: torch.empty(30).log_normal_(),
    "Tensor.exponential_": lambda: torch.empty(30).exponential_(2.0),
    "Tensor.cauchy_": lambda: torch.empty(30).cauchy_(),
    "Tensor.geometric_": lambda: torch.empty(30).geometric_(0.1),
    "Tensor.bernoulli_": lambda: torch.empty(60).bernoulli_(0.3),
    "Tensor.bernoulli_ tensor": lambda: torch.empty(5, 40).bernoulli_(P),
    "Tensor.random_": lambda: torch.empty(30, dtype=torch.int64).random_(),
    "Tensor.random_ to": lambda: torch.empty(30).random_(50),
    "Tensor.random_ range": lambda: torch.empty(30).random_(-50, 50),
    "nn.Linear": lambda: nn.Linear(8, 3).weight.detach(),
    "nn.LSTM": lambda: nn.LSTM(3, 4, num_layers=2).weight_hh_l1.detach(),
    **{
        f"nn.init.{name}": lambda name=name: getattr(nn.init, name)(torch.empty(9, 8))
        for name in (
            "uniform_",
            "normal_",
            "trunc_normal_",
            "xavier_uniform_",
            "xavier_normal_",
            "kaiming_uniform_",
            "kaiming_normal_",
            "orthogonal_",
        )
    },
    "nn.init.sparse_": lambda: nn.init.sparse_(torch.empty(9, 8), 0.3),
    "torch.svd_lowrank": lambda: torch.svd_lowrank(X[0], 2),
    "torch.svd_lowrank of a Parameter": lambda: torch.svd_lowrank(nn.Parameter(X[0]), 2)[
        1
    ].detach(),
    "torch.pca_lowrank": lambda: torch.pca_lowrank(torch.eye(9), 3),
    "torch.lobpcg": lambda: torch.lobpcg(torch.diag(torch.arange(1.0, 31)), 2, niter=1)[1],
    "distributions.Normal": lambda: torch.distributions.Normal(0.0, 1.0).rsample((30,)),
    "distributions.Categorical": lambda: torch.distributions.Categorical(P).sample((9,)),
    "distributions.Laplace": lambda: torch.distributions.Laplace(0.0, 1.0).sample((9,)),
    "ops.aten.rand": lambda: torch.ops.aten.rand([9]),
    "ops.aten.randint": lambda: torch.ops.aten.randint.low(2, 50, [30]),
    "ops.aten.bernoulli.p": lambda: torch.ops.aten.bernoulli.p(P, 0.5),
    "ops.aten.native_dropout": lambda: torch.ops.aten.native_dropout.default(X, 0.3, True),
    "ops.aten.normal_": lambda: torch.ops.aten.normal_(torch.empty(9)),
}
#: Calls that would draw and have no exact rule.
UNROUTED: dict[str, Callable[[], Any]] = {
    "torch.poisson": lambda: torch.poisson(P),
    "torch.binomial": lambda: torch.binomial(P.round() + 3, P),
    "_standard_gamma": lambda: torch.distributions.Gamma(1.0, 1.0).sample(),
    "_sample_dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(3)).sample(),
    "torch.lstm": module(lambda: nn.LSTM(8, 3, 2, dropout=0.5), X),
    "torch.gru": module(lambda: nn.GRU(8, 3, 2, dropout=0.5), X),
    "torch.rnn_tanh": module(lambda: nn.RNN(8, 3, 2, dropout=0.5), X),
    "torch.rnn_relu": module(
        lambda: nn.RNN(8, 3, 2, dropout=0.5, nonlinearity="relu"),
        nn.utils.rnn.pack_padded_sequence(X, [6, 5, 2, 1]),
    ),
    "_scaled_dot_product_attention_math": lambda: torch._scaled_dot_product_attention_math(
        X, X, X, dropout_p=0.5
    ),
    "aten.poisson": lambda: torch.ops.aten.poisson(P),
    "aten.uniform.default": lambda: torch.ops.aten.uniform.default(X),
}
#: Calls that could draw and do not.
STILL: dict[str, Callable[[], Any]] = {
    "eval": lambda: F.dropout(X, 0.5, training=False),
    "p=0": lambda: F.dropout(X, 0.0),
    "p=1": lambda: F.dropout(X, 1.0),
    "empty": lambda: F.dropout(X[:0], 0.5),
    "eval dropout2d": lambda: F.dropout2d(IMAGE, 0.5, training=False),
    "p=1 alpha": lambda: F.alpha_dropout(X, 1.0, training=True),
    "eval alpha": lambda: F.alpha_dropout(X),
    "eval rrelu": lambda: F.rrelu(X),
    "attention": lambda: F.scaled_dot_product_attention(X, X, X),
    "math attention": lambda: torch._scaled_dot_product_attention_math(X, X, X),
    "native": lambda: torch.native_dropout(X, 0.5, False),
    "operator": lambda: torch.ops.aten.dropout(X, 0.5, False),
    "lstm": module(lambda: nn.LSTM(8, 3, 2), X),
    "one layer": module(lambda: nn.GRU(8, 3, 1, dropout=0.0), X),
    "pool": lambda: F.fractional_max_pool2d(
        IMAGE, 2, output_size=3, _random_samples=torch.full((1, 4, 2), 0.5)
    ),
    "init": lambda: nn.init.constant_(torch.empty(3), 2.0),
    "ordinary": lambda: (X.sin() @ X.mT).sum(dim=-1, keepdim=True),
}

drawing = pytest.mark.parametrize("name", CALLS)


def routed(name: str, made: Tensor = key(0)) -> Any:  # noqa: B008  # a constant
    with route(made):
        return CALLS[name]()


def as_tree(value: Any) -> Any:
    return tuple(value) if isinstance(value, (tuple, list)) else value


@drawing
def test_b16_the_key_decides_and_the_global_generator_has_no_say(name):
    with torch.random.fork_rng():
        results = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            results.append(as_tree(routed(name)))
            assert torch.equal(torch.get_rng_state(), before)
        assert_trees_equal(*results)
        others = [as_tree(routed(name, k)) for k in split(key(1), 8)]
        assert any(not same(other, results[0]) for other in others), "the key had no say"


def same(a: Any, b: Any) -> bool:
    pairs = zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]
    return all(torch.equal(x, y) for x, y in pairs)


@drawing
def test_shapes_and_dtypes_are_torchs(name):
    with torch.random.fork_rng():
        want = as_tree(CALLS[name]())
    got = as_tree(routed(name))
    for a, b in zip(*[v if isinstance(v, tuple) else (v,) for v in (got, want)], strict=True):
        assert (a.shape, a.dtype, a.device, type(a)) == (b.shape, b.dtype, b.device, type(b))


@drawing
def test_without_a_key_it_is_refused_by_name(name):
    with pytest.raises(RandomnessError, match="would draw without one") as error, route(None):
        CALLS[name]()
    assert "pass key=" in error.value.remedy
    assert error.value.value.split()[0].split(".")[-1].strip("_") != ""


@pytest.mark.parametrize("name", UNROUTED)
def test_what_has_no_rule_is_refused_by_name(name):
    with pytest.raises(RandomnessError, match=f"{name} has") as error, route(key(0)):
        UNROUTED[name]()
    assert error.value.rule == "every random number is taken from the key"
    with pytest.raises(RandomnessError, match="would draw without one"), route(None):
        UNROUTED[name]()


@pytest.mark.parametrize("name", STILL)
@pytest.mark.parametrize("made", [None, key(0)])
def test_what_draws_nothing_passes(name, made):
    want = STILL[name]()
    with route(made):
        got = STILL[name]()
        after = None if made is None else torch.rand(3)
    torch.testing.assert_close(got, want)
    if made is not None:
        assert torch.equal(after, random.uniform(fold_in(made, 0), (3,))), "it was counted"


REFUSED_ARGUMENTS = {
    "given a generator": lambda: torch.rand(3, generator=torch.Generator()),
    "uniform_ was given a generator": lambda: torch.ones(3).uniform_(generator=torch.Generator()),
    "given out=": lambda: torch.rand(3, out=torch.empty(3)),
    "sparse": lambda: torch.rand(3, layout=torch.sparse_coo),
    "cannot take 41 of 40": lambda: torch.multinomial(P, 41),
}


@pytest.mark.parametrize("message", REFUSED_ARGUMENTS)
def test_refused_arguments(message):
    with pytest.raises(RandomnessError, match=message), route(key(0)):
        REFUSED_ARGUMENTS[message]()


@pytest.mark.parametrize("p", [-0.1, 1.1])
@pytest.mark.parametrize("f", [F.dropout, torch.dropout, F.scaled_dot_product_attention])
def test_a_probability_outside_its_range(f, p):
    args = (X, X, X, None, p) if f is F.scaled_dot_product_attention else (X, p, True)
    with pytest.raises(ArgumentError, match="a probability lies"), route(key(0)):
        f(*args)


def test_a_batch_of_keys_is_refused():
    with pytest.raises(ShapeError, match="route takes one key"):
        route(split(key(0)))


def test_call_n_uses_the_nth_fold():
    made = key(5)
    with route(made):
        drawn = [torch.rand(3) for _ in range(40)]
        kept = F.dropout(torch.ones(50), 0.3)
    for n, numbers in enumerate(drawn):
        assert torch.equal(numbers, random.uniform(fold_in(made, n), (3,)))
    assert torch.equal(kept, random.dropout(fold_in(made, 40), torch.ones(50), 0.3))


def test_the_inner_route_wins():
    with route(key(0)):
        first = torch.rand(3)
        with route(key(1)):
            inner = torch.rand(3)
        with route(None), pytest.raises(RandomnessError):
            torch.rand(3)
        second = torch.rand(3)
    assert torch.equal(inner, random.uniform(fold_in(key(1), 0), (3,)))
    assert torch.equal(torch.stack([first, second]),
                       random.uniform(fold_in(key(0), torch.arange(2)), (3,)))  # fmt: skip


def test_the_route_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), route(key(0)):
        _ = 1 / 0
    before = torch.get_rng_state()
    torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(before)


def test_a_default_device_is_seen():
    made = key(0)
    with torch.device("meta"), route(made):
        assert torch.rand(3).device.type == "meta"
        assert torch.randperm(3, device="cpu").device.type == "cpu"


# ---- under transforms ------------------------------------------------------------------------


def noisy(made: Tensor, x: Tensor) -> Tensor:
    with route(made):
        x = F.dropout(x, 0.3) + torch.rand(x.shape) + torch.randn_like(x)
        x = x + torch.empty_like(x).uniform_() + F.gumbel_softmax(x, dim=-1)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.2)


def test_each_member_of_a_vmap_has_its_own_numbers():
    keys = split(key(0), 3)
    assert_vmap_equal(noisy, *[(k, x) for k, x in zip(keys, X[:3], strict=True)])
    chunked = torch.vmap(noisy, chunk_size=2)(keys, X[:3])
    torch.testing.assert_close(chunked, torch.vmap(noisy)(keys, X[:3]), rtol=0, atol=0)
    rows = torch.vmap(lambda k: noisy(k, X[0]))(keys)
    assert not torch.equal(rows[0], rows[1])


def test_one_key_gives_all_members_the_same():
    same_input = torch.ones(3, 4, 8)
    rows = torch.vmap(noisy, (None, 0))(key(0), same_input)
    assert torch.equal(rows[0], rows[1])
    with route(key(0)):  # the route outside of the vmap
        outside = torch.vmap(lambda x: F.dropout(x, 0.3))(same_input)
        after = torch.rand(2)
    assert torch.equal(outside[1], random.dropout(fold_in(key(0), 0), same_input[1], 0.3))
    assert torch.equal(after, random.uniform(fold_in(key(0), 1), (2,)))


MODULES = {
    "dropout": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)), 1),
    "feature dropout": (lambda: nn.Dropout1d(0.4), 1),
    "alpha dropout": (lambda: nn.AlphaDropout(0.4), 1),
    "rrelu": (nn.RReLU, 1),
    "attention": (lambda: nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True), 3),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_under_vmap_and_grad(name):
    make, inputs = MODULES[name]
    torch.manual_seed(0)
    net = make().train()
    params = {k: v.detach() for k, v in net.named_parameters()}

    def loss(x: Tensor, made: Tensor) -> Tensor:
        with route(made):
            out = torch.func.functional_call(net, params, (x,) * inputs)
        return (out[0] if isinstance(out, tuple) else out).square().sum()

    gradient = torch.func.grad(loss)
    assert_vmap_equal(gradient, *[(x, k) for x, k in zip(X, split(key(0), 6), strict=True)],
                      rtol=1e-4)  # fmt: skip


def test_outer_routes_survive_inner_transforms():
    """Keys made ahead inside of a transform are used after it has ended."""
    w, made = torch.linspace(1, 2, 9), key(3)
    with route(made):
        first = torch.func.grad(lambda w: F.dropout(w).sum())(w)
        second = F.dropout(w)
        third = torch.func.jvp(F.dropout, (w,), (w,))[1]
        fourth = torch.vmap(torch.func.grad(lambda w: F.dropout(w).sum()))(w.repeat(2, 1))
        fifth = F.dropout(w)
    masks = [random.dropout(fold_in(made, n), torch.ones(9)) for n in range(5)]
    assert torch.equal(first, masks[0])
    assert torch.equal(second, masks[1] * w)
    assert torch.equal(third, masks[2] * w)
    assert torch.equal(fourth[1], masks[3])
    assert torch.equal(fifth, masks[4] * w)


def test_jitted_equals_eager():
    def loss(made: Tensor, x: Tensor) -> Tensor:
        with route(made):
            return (F.dropout(x.sin(), 0.3) + torch.rand(x.shape)).square().sum()

    gradients = torch.vmap(torch.func.grad(loss, argnums=1))
    assert_jit_equal(lambda k, x: gradients(split(k, 6), x), key(0), X)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_the_traced_graph_draws_from_no_generator(mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(noisy, tracing_mode=mode)(key(0), X)
    tags = {tag for node in graph.graph.nodes for tag in getattr(node.target, "tags", ())}
    assert torch.Tag.nondeterministic_seeded not in tags
    torch.testing.assert_close(graph(key(7), X), noisy(key(7), X))


def test_a_fill_that_cannot_hold_a_number_per_member_is_refused():
    def fill(made: Tensor) -> Tensor:
        with route(made):
            x = torch.empty(5)
            x.uniform_()
            return x

    with pytest.raises(RandomnessError, match="uniform_ would write a number for each member"):
        torch.vmap(fill)(split(key(0), 3))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_block_that_draws_is_refused(reentrant):
    x = torch.ones(5, requires_grad=True)
    with pytest.raises(RandomnessError, match="checkpointed block"), route(key(0)):
        checkpoint(F.dropout, x, use_reentrant=reentrant)
    with route(key(0)):
        checkpoint(torch.sin, x, use_reentrant=reentrant).sum().backward()
    with torch.no_grad(), route(key(0)):  # nothing will call it again
        kept = checkpoint(F.dropout, x, use_reentrant=False)
    assert torch.equal(kept, random.dropout(fold_in(key(0), 0), x.detach()))


def test_every_error_is_ours():
    for call in [*UNROUTED.values(), *REFUSED_ARGUMENTS.values()]:
        with pytest.raises(FuncloopError), route(key(0)):
            call()
