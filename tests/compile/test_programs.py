"""Random programs over random trees: jitted equals plain, donated equals not donated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import Tensor

import funcloop as fl
from funcloop.testing import tensors, trees

WIDTH = 4
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu in place": lambda x: F.relu(x.clone(), inplace=True),
    "square": torch.square,
    "transpose": lambda x: x.T.contiguous() if x.shape[0] == WIDTH else -x,
    "softmax": lambda x: x.softmax(-1),
    "cumulated": lambda x: x.cumsum(0),
    "first column twice": lambda x: _add_to_column(x),
    "gradient": lambda x: torch.func.grad(lambda y: (y.sin() * y).sum())(x),
    "rows by vmap": torch.func.vmap(lambda row: row - row.mean()),
    "sorted": lambda x: x.sort(-1).values,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "multiply": torch.mul,
    "matrix product": lambda x, y: x @ y[:1].T.expand(WIDTH, WIDTH) / WIDTH,
    "larger": torch.maximum,
    "where": lambda x, y: torch.where(x > y, x, -y[:1]),
    "outer": lambda x, y: torch.einsum("ij,kj->ik", x, y) @ y / WIDTH,
}
STEPS = st.tuples(st.sampled_from([*UNARY, *BINARY]), st.integers(0, 9), st.integers(0, 9))


def _add_to_column(x: Tensor) -> Tensor:
    """Two writes through a view into a tensor of its own."""
    result = torch.zeros_like(x)
    result[:, 0] += x[:, 1].abs()
    result[:, 0] += x[:, 1].abs()
    return result


def program(steps: list[tuple[str, int, int]]) -> Callable[[Tensor, Tensor], Tensor]:
    """A straight-line program of two matrices (N, WIDTH) and what the steps before gave."""

    def run(x: Tensor, y: Tensor) -> Tensor:
        values = [x, y]
        for name, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(UNARY[name](a) if name in UNARY else BINARY[name](a, b))
        return values[-1]

    return run


PROGRAMS = st.lists(STEPS, min_size=1, max_size=6)


def assert_close(got: Any, want: Any) -> None:
    """Equal to rounding, relative to the largest entry."""
    for a, b in zip(fl.tree.leaves(got), fl.tree.leaves(want), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * (1 + float(b.abs().max())))


@given(steps=PROGRAMS, rows=st.sampled_from([1, 2, WIDTH, 5]))
def test_random_programs_jitted_equal_plain(steps, rows):
    x, y = torch.linspace(-2, 2, 2 * rows * WIDTH).view(2, rows, WIDTH)
    f = program(steps)
    assert_close(fl.jit(f, backend="aot_eager")(x, y), f(x, y))


@given(tree=trees(tensors(layouts=("contiguous", "transposed", "strided"))), steps=PROGRAMS)
def test_random_trees_donated_equal_not_donated(tree, steps):
    f = program(steps)

    def step(tree: Any, scale: Tensor) -> tuple[Any, Tensor]:
        x = torch.linspace(-1, 1, 5 * WIDTH).view(5, WIDTH) * scale
        moved = f(x, x.flip(0)).sum()
        return fl.tree.map(lambda leaf: leaf + (moved * 0 + 1).to(leaf.dtype), tree), moved

    scale = torch.tensor(0.5)
    plain = fl.jit(step, backend="aot_eager")
    donated = fl.jit(step, donate=0, backend="aot_eager")
    kept, given_away = tree, fl.tree.map(torch.clone, tree)
    for _ in range(3):
        kept, moved = plain(kept, scale)
        given_away, also = donated(given_away, scale)
        torch.testing.assert_close(moved, also, rtol=0, atol=0)
    fl.testing.assert_trees_equal(given_away, kept)


@pytest.mark.parametrize("seed", range(2))
def test_many_programs_in_one_inductor_graph(seed, device):
    """Every operation meets every other, in one compilation."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int) -> int:
        return int(torch.randint(high, (), generator=generator))

    names = [*UNARY, *BINARY]
    programs = {
        f"{number} {name}": program(
            [(name, 0, 1), *[(names[draw(len(names))], draw(9), draw(9)) for _ in range(3)]]
        )
        for number in range(2)
        for name in names
    }

    def together(state: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        results = {name: f(state, y) for name, f in programs.items()}
        return state + results["0 tanh"], results

    x, y = torch.linspace(-2, 2, 10 * WIDTH, device=device).view(2, 5, WIDTH)
    want = together(x, y)
    assert_close(fl.jit(together)(x, y), want)
    assert_close(fl.jit(together, donate=0)(x.clone(), y), want)


@torch.library.custom_op("funcloop_tests::halves", mutates_args=())
def halves(x: Tensor) -> list[Tensor]:
    return [x / 2]


@halves.register_fake
def _(x: Tensor) -> list[Tensor]:
    return [torch.empty_like(x)]


def test_a_custom_operator_that_returns_a_list():
    """Inductor's C++ calls of such an operator crash the process (torch 2.13)."""
    assert fl.jit(lambda x: halves(x)[0] + 1)(torch.ones(2)).tolist() == [1.5, 1.5]
