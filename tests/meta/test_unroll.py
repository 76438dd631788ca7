import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from funcloop import random, tree
from funcloop._errors import ArgumentError, UnsupportedError
from funcloop.meta import remat, scan, unroll
from tests.laws import assert_jit_equal, assert_pure, assert_trees_close, assert_vmap_equal

F64 = torch.float64


def step(state, batch):
    """Everything that a state may hold: floats, a counter, a key, an empty tree, a bool."""
    # The key makes the noise, without a sampler's thousand operators in every trace.
    x = torch.sin(state["x"] * batch["scale"]) + state["key"][1] % 7 / 7
    new = {"x": x, "count": state["count"] + 1, "key": state["key"] * 5 + 1}
    return new | {"none": (), "flag": state["flag"]}, {"norm": x.norm(), "count": state["count"]}


def start(device="cpu"):
    state = {
        "x": torch.arange(3, dtype=F64),
        "count": torch.tensor(0),
        "key": random.key(0),
        "none": (),
        "flag": torch.tensor(True),
    }
    return tree.map(lambda x: x.to(device), (state, {"scale": torch.tensor(1.2, dtype=F64)}))


def run(n, again):
    return unroll(step, n, remat=again)


def total(n, again):
    """A 0-d function of the floats alone, through state and metrics."""
    state, batch = start()

    def f(x, scale):
        end, metrics = run(n, again)(state | {"x": x}, {"scale": scale})
        return (end["x"] ** 2).sum() + metrics["norm"].prod()

    return f, state["x"], batch["scale"]


@given(n=st.integers(0, 9))
@settings(max_examples=5)
def test_recomputation_changes_no_value_and_no_gradient(n):
    assert_trees_close(run(n, True)(*start()), run(n, False)(*start()))
    again, x, scale = total(n, True)
    plain, *_ = total(n, False)
    gradient = torch.func.grad(again, argnums=(0, 1))
    assert_trees_close(gradient(x, scale), torch.func.grad(plain, argnums=(0, 1))(x, scale))


DERIVED = {
    "grad of grad": lambda f, x, s: torch.func.grad(lambda x: torch.func.grad(f)(x, s).cos().sum())(
        x
    ),
    "jvp": lambda f, x, s: torch.func.jvp(f, (x, s), (x.cos(), s)),
    "jvp of grad": lambda f, x, s: torch.func.jvp(torch.func.grad(f), (x, s), (x.cos(), s)),
    "grad of jvp": lambda f, x, s: torch.func.grad(
        lambda x: torch.func.jvp(f, (x, s), (x.cos(), s))[1]
    )(x),
    "vmap of grad": lambda f, x, s: torch.func.vmap(torch.func.grad(f), (0, None))(
        torch.stack([x, x + 1]), s
    ),
    "jvp of jvp": lambda f, x, s: torch.func.jacfwd(torch.func.jacfwd(f))(x, s),
    "grad of vmap": lambda f, x, s: torch.func.grad(
        lambda s: torch.func.vmap(f, (0, None))(torch.stack([x, x + 1]), s).sum()
    )(s),
}


@pytest.mark.parametrize("name", DERIVED)
def test_recomputation_composes(name):
    again, x, scale = total(3, True)
    plain, *_ = total(3, False)
    derive = DERIVED[name]
    assert_trees_close(derive(again, x, scale), derive(plain, x, scale), 1e-10)
    assert_jit_equal(lambda x, s: derive(again, x, s), x, scale, rtol=1e-10)


def test_plain_autograd_sees_the_same_gradient():
    again, x, scale = total(4, True)
    leaf = x.clone().requires_grad_()
    again(leaf, scale).backward()
    assert_trees_close(leaf.grad, torch.func.grad(total(4, False)[0])(x, scale), 1e-10)


@pytest.mark.parametrize("again", [False, True])
def test_pure_vmap(again, device):
    assert_pure(run(5, again), *start(device))
    state, batch = start(device)
    other = state | {"x": state["x"] + 1, "key": random.key(1).to(device)}
    assert_vmap_equal(run(5, again), (state, batch), (other, batch))


@pytest.mark.parametrize("again", [False, True])
def test_scan_takes_one_batch_a_step(again):
    state, _ = start()
    rows = {"scale": torch.linspace(0.5, 1.5, 5, dtype=F64)}
    got = scan(step, remat=again)(state, rows)
    metrics = []
    for row in tree.unstack(rows):
        state, values = step(state, row)
        metrics.append(values)
    assert_trees_close(got, (state, tree.stack(metrics)))

    def f(scales):
        return scan(step, remat=again)(start()[0], {"scale": scales})[0]["x"].sum()

    got = torch.func.grad(f)(rows["scale"])
    want = torch.func.grad(lambda s: scan(step)(start()[0], {"scale": s})[0]["x"].sum())(
        rows["scale"]
    )
    assert_trees_close(got, want)


def test_a_captured_tensor_is_refused_where_its_gradient_would_be_lost():
    x = torch.ones(2, dtype=F64)

    def f(scale):
        return unroll(lambda x, _: ((x * scale).sin(), {}), 2, remat=True)(x, ())[0].sum()

    with pytest.raises(UnsupportedError, match="captured tensor that is being differentiated"):
        torch.func.grad(f)(torch.tensor(1.0, dtype=F64))
    with pytest.raises(UnsupportedError, match="as a part of the batch"):
        torch.func.grad(lambda x: torch.func.grad(lambda s: f(s * x))(x))(x.sum())
    tangent = torch.func.jvp(f, (torch.tensor(1.0, dtype=F64),), (torch.tensor(1.0, dtype=F64),))[1]
    plain = torch.func.grad(lambda s: ((x * s).sin() * s).sin().sum())(torch.tensor(1.0, dtype=F64))
    torch.testing.assert_close(tangent, plain)  # forward mode loses nothing


def test_a_captured_constant_is_fine_also_batched():
    x = torch.ones(2, dtype=F64)

    def f(x, scale):
        return remat(lambda x: (x * scale).sin().sum())(x)

    want = torch.func.vmap(torch.func.grad(lambda x, s: (x * s).sin().sum()))
    args = torch.stack([x, 2 * x]), torch.stack([x, 3 * x])
    assert_trees_close(torch.func.vmap(torch.func.grad(f))(*args), want(*args))
    got = torch.func.grad(lambda x: torch.func.vmap(f)(x, args[1]).sum())(args[0])
    assert_trees_close(got, want(*args))


def test_bfloat16_and_empty_trees():
    x = torch.ones(2, dtype=torch.bfloat16)
    gradient = torch.func.grad(lambda x: remat(lambda x, rest: (x.sin(), rest))(x, {})[0].sum())
    assert gradient(x).dtype is torch.bfloat16
    assert remat(lambda x: x)({}) == {}


def test_a_negative_count_is_refused():
    with pytest.raises(ArgumentError, match="n=-1"):
        unroll(step, -1)
