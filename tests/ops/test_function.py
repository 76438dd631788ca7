"""A function with its own backward behaves as any function does, under every transform."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from funcloop import ops
from funcloop._errors import ShapeError, StructureError, UnsupportedError
from funcloop.compile import jit
from tests.cases import generator
from tests.laws import assert_jit_equal, assert_trees_close, assert_trees_equal

D = torch.float64
ROUND = ops.function(torch.round, lambda g, y, x: g)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=D)


#: Functions beside the backward that autograd would have.
SMOOTH: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "elementwise": (
        lambda x, y: x.sin() * y,
        lambda g, out, x, y: (g * x.cos() * y, g * x.sin()),
    ),
    "dot": (
        lambda x, y: (x @ y).tanh(),
        lambda g, out, x, y: (g * (1 - out * out) * y, g * (1 - out * out) * x),
    ),
    "two outputs": (
        lambda x, y: (x * y, x.exp() + y),
        lambda g, out, x, y: (g[0] * y + g[1] * (out[1] - y), g[0] * x + g[1]),
    ),
}


def scalar(f: Callable[..., Any]) -> Callable[..., Tensor]:
    def run(*args: Tensor) -> Tensor:
        outputs = f(*args)
        return sum((x * x).sum() for x in (outputs if isinstance(outputs, tuple) else (outputs,)))

    return run


def forward(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: jvp(
        f, args, tuple((i + 1) * torch.ones_like(x) for i, x in enumerate(args))
    )[1]


def reverse(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*args: Tensor) -> Tensor:
        gradients = grad(f, argnums=tuple(range(len(args))))(*args)
        return sum((g * torch.arange(1.0, 4, dtype=D)).sum() for g in gradients)

    return run


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(
    "nesting", [n for k in (1, 2, 3) for n in itertools.product((forward, reverse), repeat=k)]
)
def test_any_nesting_is_what_autograd_gives(name: str, nesting: tuple[Callable[..., Any], ...]):
    want = scalar(SMOOTH[name][0])
    got = scalar(ops.function(*SMOOTH[name]))
    for derive in nesting:
        got, want = derive(got), derive(want)
    x, y = normal(3, seed=0), normal(3, seed=1)
    many_x, many_y = normal(4, 3, seed=2), normal(4, 3, seed=3)
    assert_trees_close(got(x, y), want(x, y), 1e-11)
    for dims, args in (((0, 0), (many_x, many_y)), ((0, None), (many_x, y))):
        assert_trees_close(vmap(got, dims)(*args), vmap(want, dims)(*args), 1e-11)
    pairs = [vmap(vmap(f, (0, None)), (None, 0))(many_x, many_y) for f in (got, want)]
    assert_trees_close(*pairs, 1e-11)
    if len(nesting) == 2:
        assert_jit_equal(vmap(got), many_x, many_y, rtol=1e-11)


def test_plain_autograd_too():
    f = ops.function(*SMOOTH["two outputs"])
    point = [normal(3, seed=i).requires_grad_() for i in (0, 1)]
    assert torch.autograd.gradcheck(f, point, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(f, point, check_fwd_over_rev=True)


def test_b03_custom_backward_survives(device: torch.device):
    def f(x: Tensor) -> Tensor:
        return 3 * ROUND(x)

    x = torch.tensor([0.2, 1.7], device=device)
    three = torch.full_like(x, 3)
    rows = vmap(grad(f))
    for run in (rows, jit(rows, backend="aot_eager"), vmap(grad(f), chunk_size=1)):
        assert_trees_equal(run(x), three)
    assert_trees_equal(rows(x.bfloat16()), three.bfloat16())
    assert_trees_equal(jit(rows, backend="aot_eager")(x.bfloat16()), three.bfloat16())
    squared = grad(grad(lambda x: 3 * ROUND(x) ** 2))
    for run in (squared, jit(squared, backend="aot_eager")):
        assert_trees_equal(run(x[1]), torch.tensor(6.0, device=device))
    empty = vmap(grad(lambda r: f(r).sum()))(torch.empty(0, 2, device=device))
    assert empty.shape == (0, 2)


def test_b03_torch_compile_never_drops_the_backward():
    """It runs the function eagerly, where it may, or refuses; it never gives another gradient."""
    f, x = vmap(grad(lambda x: 3 * ROUND(x))), torch.tensor([0.2, 1.7])
    torch._dynamo.reset()
    with contextlib.suppress(UnsupportedError):
        assert_trees_equal(torch.compile(f, backend="eager")(x), torch.full((2,), 3.0))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(f, backend="eager", fullgraph=True)(x)


def test_trees_constants_and_integers():
    def f(tree: dict[str, Tensor], n: int, index: Tensor) -> dict[str, Tensor]:
        return {"power": tree["x"] ** n, "chosen": tree["y"][index], "index": index + 1}

    def backward(g: Any, out: Any, tree: Any, n: int, index: Tensor) -> tuple[Any, ...]:
        chosen = torch.zeros_like(tree["y"]).index_put((index,), g["chosen"], accumulate=True)
        return {"x": g["power"] * n * tree["x"] ** (n - 1), "y": chosen}, None, None

    tree = {"x": normal(3, seed=0), "y": normal(4, seed=1)}
    index = torch.tensor([2, 0])

    def loss(run: Callable[..., Any], tree: dict[str, Tensor]) -> Tensor:
        out = run(tree, 3, index)
        return out["power"].sum() + (out["chosen"] * torch.tensor([1.0, 2.0], dtype=D)).sum()

    custom = ops.function(f, backward)
    assert_trees_close(custom(tree, 3, index), f(tree, 3, index))
    want = grad(lambda t: loss(f, t))(tree)
    assert_trees_close(grad(lambda t: loss(custom, t))(tree), want)
    assert_jit_equal(grad(lambda t: loss(custom, t)), tree)
    tangents = {"x": normal(3, seed=2), "y": normal(4, seed=3)}
    got = jvp(lambda t: loss(custom, t), (tree,), (tangents,))
    assert_trees_close(got, jvp(lambda t: loss(f, t), (tree,), (tangents,)))


def test_a_batched_input_that_only_the_derivative_knows():
    """torch's generated rule would add up the members' gradients before backward sees them."""
    f = ops.function(lambda x, y: x.sign(), lambda g, out, x, y: (g * y, g * x))
    x, y = normal(3, seed=0), normal(4, 3, seed=1)
    weight = normal(4, 3, seed=2)
    gradient = grad(lambda x: (vmap(f, (None, 0))(x, y) * weight).sum())(x)
    assert_trees_close(gradient, (weight * y).sum(0))
    _, tangent = jvp(lambda x: vmap(f, (None, 0))(x, y), (x,), (torch.ones_like(x),))
    assert_trees_close(tangent, y)


@pytest.mark.parametrize("name", SMOOTH)
def test_forward_mode_over_vmap(name: str):
    """Also twice: torch has no batching rule for taking a tangent off."""
    x, y = normal(4, 3, seed=0), normal(3, seed=1)
    runs = [
        forward(forward(lambda x, y, f=f: vmap(scalar(f), (0, None))(x, y)))
        for f in (ops.function(*SMOOTH[name]), SMOOTH[name][0])
    ]
    got, want = (run(x, y) for run in runs)
    assert_trees_close(got, want, 1e-11)
    nested = [
        forward(lambda x, y, f=f: vmap(vmap(scalar(f), (0, None)), (None, 0))(x, y))
        for f in (ops.function(*SMOOTH[name]), SMOOTH[name][0])
    ]
    got, want = (run(x, normal(2, 3, seed=2)) for run in nested)
    assert_trees_close(got, want, 1e-11)


def test_an_identity_is_a_tensor_of_its_own():
    f = ops.function(lambda x: x, lambda g, out, x: 2 * g)
    x = normal(3, seed=0)
    assert f(x) is not x
    assert_trees_equal(grad(lambda x: f(x).sum())(x), torch.full((3,), 2.0, dtype=D))


def test_numpy_inside_needs_a_batching_rule():
    def cube(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** 3)

    def rule(info: Any, dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int | None]:
        return f(x), dims[0]

    f = ops.function(cube, lambda g, out, x: 3 * g * x * x, vmap=rule)
    x = normal(4, 3, seed=0)
    assert_trees_close(vmap(f, 1, 1)(x), x**3)
    assert_trees_close(vmap(vmap(grad(f)))(x), 3 * x * x)


def test_batching_rule_with_trees():
    def forward(tree: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sum": tree["a"] + tree["b"]}

    def rule(info: Any, dims: Any, tree: dict[str, Tensor]) -> tuple[Any, Any]:
        moved = {
            k: x if d is None else x.movedim(d, 0)
            for (k, x), d in zip(tree.items(), dims[0].values(), strict=True)
        }
        return forward(moved), {"sum": 0}

    f = ops.function(forward, lambda g, out, tree: {"a": g["sum"], "b": g["sum"]}, vmap=rule)
    a, b = normal(3, 4, seed=0), normal(3, seed=1)
    got = vmap(f, ({"a": 1, "b": None},))({"a": a, "b": b})["sum"]
    assert_trees_close(got, a.T + b)


def test_own_jvp_is_used():
    f = ops.function(torch.sin, lambda g, y, x: g * x.cos(), jvp=lambda t, y, x: 7 * t[0])
    assert jvp(f, (torch.tensor(0.1),), (torch.tensor(1.0),))[1] == 7
    assert jacrev(f)(torch.tensor(0.0)) == 1
    assert jacfwd(f)(torch.tensor(0.0)) == 7


def test_low_precision_gradients_keep_their_dtype():
    f = ops.function(
        lambda x, s: x * s.to(x.dtype), lambda g, y, x, s: (g.float() * s, (g * x).float().sum())
    )
    x, s = torch.ones(3, dtype=torch.bfloat16), torch.tensor(2.0, dtype=torch.float16)
    gx, gs = grad(lambda x, s: f(x, s).sum().float(), argnums=(0, 1))(x, s)
    assert (gx.dtype, gs.dtype) == (torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("f", "error", "match"),
    [
        (ops.function(lambda x: (x, 3), lambda g, y, x: g), StructureError, "returns a int"),
        (ops.function(torch.sin, lambda g, y, x: g.sum()), ShapeError, r"shape \(\)"),
        (
            ops.function(lambda x: {"a": x}, lambda g, y, x: g),
            StructureError,
            "gradient 0 of <lambda>",
        ),
    ],
)
def test_faults_are_explained(f: Callable[..., Any], error: type[Exception], match: str):
    def loss(x: Tensor) -> Tensor:
        out = f(x)
        return (out["a"] if isinstance(out, dict) else out).sum()

    with pytest.raises(error, match=match):
        grad(loss)(torch.ones(3))


def test_a_gradient_for_each_input():
    f = ops.function(torch.mul, lambda g, out, x, y: g)
    with pytest.raises(StructureError, match="mul has 2 inputs, backward returns a Tensor"):
        grad(lambda x: f(x, x).sum())(torch.ones(3))


def test_clipping_is_refused_in_forward_mode():
    with pytest.raises(UnsupportedError, match="clip_grad in forward mode"):
        jvp(lambda x: ops.clip_grad(x, 1.0), (torch.ones(3),), (torch.ones(3),))
