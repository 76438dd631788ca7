"""jit: one graph for each kind of arguments, the same results, and errors that name the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from funcloop import random, tree
from funcloop._errors import ArgumentError, CompileError, RandomnessError, TraceError
from funcloop.compile import jit
from tests.laws import assert_jit_equal, assert_pure, assert_trees_equal
from tests.tree.test_pytree import TREES


def semantic(f: Callable[..., Any], **options: Any) -> Any:
    return jit(f, backend="aot_eager", **options)


class Round(torch.autograd.Function):
    """A straight-through rounding as users write it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_b03_a_custom_backward_survives(backend: str) -> None:
    f = torch.func.vmap(torch.func.grad(lambda x: 3 * Round.apply(x)))
    x = torch.tensor([0.2, 1.7])
    assert f(x).tolist() == jit(f, backend=backend)(x).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "f",
    [
        torch.func.grad(lambda x: (Round.apply(x) * x).sum()),
        torch.func.vmap(torch.func.grad(lambda x: 3 * Round.apply(x) ** 2)),
        torch.func.vmap(torch.func.grad(torch.func.grad(lambda x: Round.apply(x) ** 3))),
        torch.func.vmap(torch.func.grad(lambda x: 3 * Round.apply(x)), chunk_size=1),
    ],
    ids=["grad", "vmap(grad)", "vmap(grad(grad))", "chunks"],
)
@pytest.mark.parametrize("x", [torch.tensor([0.2, 1.7]), torch.ones(2, dtype=torch.bfloat16)])
def test_b03_under_every_transform(f: Any, x: Tensor) -> None:
    assert_jit_equal(f, x)


def test_b03_an_empty_batch() -> None:
    assert_jit_equal(torch.func.grad(lambda x: (3 * Round.apply(x)).sum()), torch.ones(0))


def test_b19_compiled_and_eager_agree() -> None:
    def g(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[:, 0] += x[:, 2].abs()
        y[:, 0] += x[:, 2].abs()
        return y.sum()

    x = torch.tensor([[1.0, 1.0, -3.0], [1.0, 1.0, 5.0]])
    want = torch.tensor([[0.0, 0.0, -2.0], [0.0, 0.0, 2.0]])
    assert_trees_equal(torch.func.grad(g)(x), want)
    assert_trees_equal(semantic(torch.func.grad(g))(x), want)


def test_structure_and_constants_come_back() -> None:
    def f(x: Tensor, mode: str, options: dict[str, Any]) -> Any:
        y = x + 1 if mode == "add" else x * 2
        return {"y": y, "same": x, "label": mode, "none": None}, [options["k"], (y, 3)]

    compiled = semantic(f)
    x = torch.tensor([1.0, 2.0])
    for mode in ("add", "mul", "add"):
        assert_trees_equal(
            compiled(x, mode, {"k": torch.tensor(5)}), f(x, mode, {"k": torch.tensor(5)})
        )
    assert compiled.traces == 2


def test_what_makes_a_new_graph_and_what_does_not() -> None:
    compiled = semantic(lambda tree, lr: {k: v * lr for k, v in tree.items()})
    a, b = torch.ones(2), torch.ones(3)
    for lr in (0.1, 0.2, torch.tensor(0.3)):
        compiled({"a": a, "b": b}, lr)
    assert compiled.traces == 1
    compiled({"a": a, "b": b}, 1)  # an int is another dtype
    assert compiled.traces == 2
    assert list(compiled({"b": b, "a": a}, 0.1)) == ["b", "a"]  # another order: one more graph
    assert compiled.traces == 3
    compiled({"a": b, "b": b}, 0.1)  # another shape
    compiled({"a": a.double(), "b": b}, 0.1)  # another dtype
    compiled({"a": torch.ones(4)[::2], "b": b}, 0.1)  # other strides
    assert compiled.traces == 6


@settings(max_examples=15)
@given(TREES, TREES)
def test_every_call_finds_the_graph_of_its_own_structure(first: Any, second: Any) -> None:
    """Also where a container stands in a leaf's place, or a number in a tensor's."""
    compiled = semantic(lambda value: tree.map(lambda x: x + 1, value))
    for value in (first, second, first, tree.map(torch.tensor, first)):
        want = tree.map(lambda x: torch.tensor(x) + 1, value)
        assert_trees_equal(compiled(value), want)
    assert compiled.traces <= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_python_number_keeps_the_dtype_of_the_tensors(dtype: torch.dtype) -> None:
    compiled = semantic(lambda x, lr: x * lr)
    x = torch.tensor([1.0, 3.0], dtype=dtype)
    assert_trees_equal(compiled(x, 0.1), x * 0.1)


def test_it_explains_what_made_another_graph() -> None:
    compiled = semantic(lambda batch, mode=None: (batch, mode))
    assert compiled.explain_retrace() == "no graph yet: the function has not been called"
    compiled({"x": torch.ones(4, 3), "y": torch.ones(4)}, mode="a")
    assert compiled.explain_retrace() == "one graph: nothing was re-traced"
    compiled({"x": torch.ones(2, 3), "y": torch.ones(4)}, mode="a")
    assert compiled.explain_retrace() == (
        "graph 2 was made, because\n  argument 0/x has shape (2, 3), was (4, 3)"
    )
    compiled({"x": torch.ones(4, 3, dtype=torch.float64), "z": torch.ones(4)}, mode="b")
    lines = compiled.explain_retrace().splitlines()
    assert "  argument 0/x has dtype torch.float64, was torch.float32" in lines
    assert "  argument 0/z is new" in lines
    assert "  argument 0/y is gone" in lines
    assert "  argument mode has value b, was a" in lines
    compiled({"y": torch.ones(4), "x": torch.ones(4, 3)}, mode="a")
    assert "order of their keys" in compiled.explain_retrace()


def test_b19_debug_names_the_output_that_a_compiler_gets_wrong() -> None:
    def wrong(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        def call(*args: Tensor) -> list[Tensor]:
            first, second = graph(*args)
            return [first, second * 1.5]

        return call

    def f(x: Tensor) -> dict[str, Tensor]:
        return {"right": x + 1, "wrong": x * 2}

    right = semantic(f, debug=True)
    for _ in range(5):
        right(torch.ones(3))
    with pytest.raises(
        CompileError, match=r"output wrong differs: 3 of 3 entries, at \(0,\) 3.0 instead of 2.0"
    ):
        jit(f, backend=wrong, debug=True)(torch.ones(3))


def test_debug_works_with_donation() -> None:
    compiled = semantic(lambda s, x: ({"w": s["w"] + x}, x.sum()), donate=0, debug=True)
    state = {"w": torch.zeros(2)}
    for _ in range(5):
        state, _ = compiled(state, torch.ones(2))
    assert state["w"].tolist() == [5.0, 5.0]


def test_static_arguments_by_position_and_name() -> None:
    def power(x: Tensor, n: int, *, times: int) -> Tensor:
        for _ in range(n):
            x = x * x
        return torch.cat([x] * times)

    compiled = semantic(power, static=(1, "times"))
    assert_trees_equal(compiled(torch.tensor([3.0]), 2, times=2), torch.tensor([81.0, 81.0]))
    compiled(torch.tensor([2.0]), 2, times=2)
    assert compiled.traces == 1
    compiled(torch.tensor([2.0]), 3, times=2)
    assert compiled.traces == 2
    with pytest.raises(TraceError, match="static"):
        semantic(power)(torch.tensor([3.0]), 2, times=2)


def test_a_decorator_and_a_readable_name() -> None:
    @jit(backend="aot_eager")
    def double(x: Tensor) -> Tensor:
        """Twice."""
        return 2 * x

    assert double(torch.ones(1)) == 2
    assert double.__doc__ == "Twice."
    assert "double" in repr(double)
    assert "traces=1" in repr(double)


def test_live_parameters_leave_no_graph() -> None:
    p = nn.Parameter(torch.ones(2))
    result = semantic(lambda p: {"new": p * 2, "same": p})({"p": p}["p"])
    assert result["new"].grad_fn is None
    assert not result["new"].requires_grad


def test_plain_autograd_works_inside() -> None:
    def f(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x**3).sum(), x)[0]

    assert_trees_equal(semantic(f)(torch.tensor([2.0])), torch.tensor([12.0]))


@pytest.mark.parametrize(
    "f", [torch.exp, torch.sin, lambda x: x * x * x], ids=["exp", "sin", "cube"]
)
def test_forward_mode_stays_on_the_device(f: Any) -> None:
    x = torch.tensor([0.5, 1.0, 2.0])
    assert_jit_equal(torch.func.vmap(torch.func.hessian(f)), x)
    assert_jit_equal(torch.func.hessian(lambda x: f(x).sum()), x)
    assert_jit_equal(torch.func.jacfwd(torch.func.jacfwd(lambda x: f(x).sum())), x)


def test_inside_a_transform_or_another_jit_the_plain_function_runs() -> None:
    inner = semantic(lambda x: (x * x).sum())
    assert torch.func.grad(inner)(torch.tensor([3.0])) == 6.0
    assert torch.func.vmap(inner)(torch.ones(2, 3)).tolist() == [3.0, 3.0]
    outer = semantic(lambda x: inner(x) + 1)
    assert outer(torch.ones(3)) == 4.0
    assert (inner.traces, outer.traces) == (0, 1)


def test_inside_a_route_the_plain_function_runs_so_that_no_key_is_kept() -> None:
    compiled = semantic(lambda x: torch.nn.functional.dropout(x, 0.5))
    x = torch.ones(64)
    with random.route(random.key(1)):
        first = compiled(x)
    with random.route(random.key(2)):
        second = compiled(x)
    assert not torch.equal(first, second)
    assert compiled.traces == 0


def test_the_default_device_is_part_of_the_key() -> None:
    compiled = semantic(lambda x: (x, torch.ones(2)))
    assert compiled(torch.ones(1))[1].device.type == "cpu"
    with torch.device("meta"):
        assert compiled(torch.ones(1))[1].device.type == "meta"
    assert compiled.traces == 2


def test_it_is_pure() -> None:
    assert_pure(semantic(lambda s, x: ({"w": s["w"] + x}, x.sum())), {"w": torch.ones(2)}, 3.0)


def test_autocast_is_part_of_the_key() -> None:
    compiled = semantic(lambda a, b: a @ b)
    a = torch.randn(4, 4)
    assert compiled(a, a).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(a, a).dtype is torch.bfloat16
    assert compiled.traces == 2


def branch(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return -x


def item(x: Tensor) -> Tensor:
    return x * x.sum().item()


def item_under_vmap(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda t: t * t.item())(x)


def mask(x: Tensor) -> Tensor:
    return x[x > 0]


def to_numpy(x: Tensor) -> Tensor:
    return x + float(x.numpy().sum())


@pytest.mark.parametrize(
    ("f", "line"),
    [
        (branch, r"if x.sum\(\) > 0:"),
        (item, r"return x \* x.sum\(\).item\(\)"),
        (item_under_vmap, r"lambda t: t \* t.item\(\)"),
        (mask, r"return x\[x > 0\]"),
        (to_numpy, r"x.numpy\(\)"),
    ],
)
def test_a_look_at_a_value_is_refused_at_the_users_line(f: Any, line: str) -> None:
    with pytest.raises(TraceError, match=rf"{line}.*test_jit.py:\d+.*torch.where"):
        semantic(f)(torch.ones(3))


def test_other_errors_pass_through() -> None:
    with pytest.raises(KeyError, match="missing"):
        semantic(lambda tree: tree["missing"])({"w": torch.ones(1)})


def test_a_draw_without_a_key_is_refused_at_the_users_line() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand(3)

    before = torch.get_rng_state()
    with pytest.raises(RandomnessError, match=r"aten.rand.*`return x \+ torch.rand\(3\)`"):
        semantic(noisy)(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_attention_that_drops_nothing_draws_nothing() -> None:
    q = torch.randn(2, 2, 4, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert_jit_equal(lambda q: attend(q, q, q, is_causal=True), q)
    with pytest.raises(RandomnessError, match=r"attention|dropout|bernoulli"):
        semantic(lambda q: attend(q, q, q, dropout_p=0.5))(q)


def test_writing_into_an_argument_is_refused_by_path() -> None:
    def write(state: dict[str, Tensor]) -> Tensor:
        return state["w"][0].add_(1)

    with pytest.raises(TraceError, match=r"0/0/w is changed in place"):
        semantic(write)({"v": torch.ones(2), "w": torch.ones(2)})


def test_a_captured_parameter_is_refused_and_a_changed_constant_noticed() -> None:
    net = nn.Linear(2, 1)
    with pytest.raises(TraceError, match=r"captured parameter of shape \(1, 2\).*stateless"):
        semantic(net)(torch.ones(1, 2))
    constant = torch.ones(2)
    compiled = semantic(lambda x: x + constant)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    constant.add_(1)
    with pytest.raises(TraceError, match=r"shape \(2,\) was changed after tracing"):
        compiled(torch.ones(2))


def test_an_argument_that_cannot_be_a_constant_is_refused_by_path() -> None:
    with pytest.raises(ArgumentError, match=r"0/0/x is a numpy array.*from_numpy"):
        semantic(lambda tree: tree)({"x": torch.ones(1).numpy()})
    with pytest.raises(ArgumentError, match=r"0/0 is a set"):
        semantic(lambda tree: tree)({1, 2})
