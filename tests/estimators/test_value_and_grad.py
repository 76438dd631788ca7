"""The gradient of the weighted mean, against naive float64 arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from funcloop import tree
from funcloop._errors import ShapeError
from funcloop.estimators import Aux, value_and_grad
from tests.laws import (
    assert_deterministic,
    assert_jit_equal,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
)
from tests.references import weighted_mean_gradient

KEY = torch.zeros(2, dtype=torch.int64)


def linear_loss(params: Any, buffers: Any, batch: Any, key: Any) -> Any:
    x, weight = batch
    losses = torch.tanh(x @ params["w"] + params["b"])
    return losses, Aux({"seen": buffers["seen"] + 1}, {"twice": 2 * losses}, weight)


def problem(dtype: torch.dtype = torch.float64) -> tuple[Any, Any, Any, Tensor]:
    generator = torch.Generator().manual_seed(0)
    params = {
        "w": torch.randn(3, generator=generator, dtype=dtype),
        "b": torch.tensor(0.1, dtype=dtype),
        "unused": torch.ones(2, dtype=dtype),
    }
    batch = (
        torch.randn(5, 3, generator=generator, dtype=dtype),
        torch.tensor([1.0, 0.0, 2.5, 3.0, 0.5], dtype=dtype),
    )
    return params, {"seen": torch.tensor(0)}, batch, KEY


def test_it_is_the_exact_weighted_mean() -> None:
    params, buffers, (x, weight), key = problem()
    got = value_and_grad(linear_loss)(params, buffers, (x, weight), key)
    loss, grads = weighted_mean_gradient(
        lambda w, b: torch.tanh(x @ w + b), weight, [params["w"], params["b"]]
    )
    want = {"w": grads[0], "b": grads[1], "unused": torch.zeros(2, dtype=torch.float64)}
    assert_trees_close(got.grads, want, rtol=1e-14)
    torch.testing.assert_close(got.loss, loss, rtol=1e-14, atol=0)
    torch.testing.assert_close(got.metrics["twice"], 2 * loss, rtol=1e-14, atol=0)
    assert got.weight == 7.0
    assert got.buffers == {"seen": torch.tensor(1)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_laws(dtype: torch.dtype) -> None:
    grad_fn = value_and_grad(linear_loss)
    estimate = assert_pure(grad_fn, *problem(dtype))
    assert tree.structure(estimate.grads) == tree.structure(problem(dtype)[0])
    assert {g.dtype for g in tree.leaves(estimate.grads)} == {dtype}
    wide = torch.promote_types(dtype, torch.float32)
    assert estimate.loss.dtype is estimate.weight.dtype is wide
    assert_deterministic(grad_fn, *problem(dtype))
    assert_jit_equal(grad_fn, *problem(dtype))


def test_vmap_over_members_equals_the_loop() -> None:
    params, buffers, batch, key = problem()
    members = tree.stack([params, tree.scale(params, 2.0)])
    got = torch.func.vmap(value_and_grad(linear_loss), (0, None, None, None))(
        members, buffers, batch, key
    )
    loop = [value_and_grad(linear_loss)(p, buffers, batch, key) for p in tree.unstack(members)]
    assert_trees_close(got, tree.stack(loop))


def test_a_0d_loss_is_one_example() -> None:
    estimate = value_and_grad(lambda p, b, x, k: (p * x).sum())(
        torch.tensor(2.0), {}, torch.tensor([1.0, 3.0]), KEY
    )
    assert (estimate.grads, estimate.loss, estimate.weight) == (4.0, 8.0, 1.0)


def test_an_empty_batch_weighs_nothing() -> None:
    estimate = value_and_grad(lambda p, b, x, k: p * x)(torch.tensor(2.0), {}, torch.ones(0), KEY)
    assert (estimate.grads, estimate.loss, estimate.weight) == (0.0, 0.0, 0.0)


def test_b24_live_parameters_do_not_chain_graphs() -> None:
    net = nn.Linear(4, 1)

    def loss_fn(params: Any, buffers: Any, batch: Any, key: Any) -> Tensor:
        return torch.func.functional_call(net, params, (batch,)).squeeze(-1)

    estimate = value_and_grad(loss_fn)(dict(net.named_parameters()), {}, torch.ones(2, 4), KEY)
    for leaf in tree.leaves(estimate):
        assert leaf.grad_fn is None
        assert not leaf.requires_grad


def test_second_derivatives_pass_through() -> None:
    grad_fn = value_and_grad(lambda p, b, x, k: p**3 * x)

    def inner(p: Tensor) -> Tensor:
        return grad_fn(p, {}, torch.tensor([1.0, 3.0]), KEY).grads

    assert_trees_equal(torch.func.grad(inner)(torch.tensor(5.0)), torch.tensor(60.0))
    _, tangent = torch.func.jvp(inner, (torch.tensor(5.0),), (torch.tensor(1.0),))
    assert tangent == 60.0


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda p, b, x, k: p * torch.ones(2, 3), r"shape \(2, 3\).*flatten"),
        (
            lambda p, b, x, k: (p * x, Aux(b, {"m": torch.ones(())})),
            r"m of shape \(\) beside losses of \(2,\)",
        ),
        (lambda p, b, x, k: (p * x, Aux(b, {}, torch.ones(3))), r"weight of shape \(3,\)"),
    ],
)
def test_wrong_shapes_are_refused(loss_fn: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        value_and_grad(loss_fn)(torch.tensor(1.0), {}, torch.ones(2), KEY)


def test_an_integer_parameter_is_refused_by_path() -> None:
    with pytest.raises(ShapeError, match=r"layer/n is torch.int64.*buffers"):
        value_and_grad(lambda p, b, x, k: x)(
            {"layer": {"n": torch.tensor(1)}}, {}, torch.ones(2), KEY
        )
