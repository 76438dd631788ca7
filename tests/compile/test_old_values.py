"""What a donated leaf held before is what results see, copies that change nothing included."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import funcloop as fl
from tests.laws import assert_trees_equal

P, Q, X = torch.randn(4, 6), torch.randn(4, 6), torch.randn(3, 4)
COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": torch.clone,
    "repeat": lambda p: p.repeat(1, 1),
    "cat": lambda p: torch.cat([p]),
    "power": lambda p: p**1,
    "zero": lambda p: p + torch.zeros(4, 6),
    "unsafe_chunk": lambda p: torch.unsafe_chunk(p, 1)[0],
}


def exchange(copy: Callable[[Tensor], Tensor]):
    """Two leaves change places, as copies."""
    return lambda state, x: ({"p": copy(state["q"]), "q": copy(state["p"])}, x.sum())


def kept(copy: Callable[[Tensor], Tensor]):
    """The old value is returned, and becomes another leaf."""
    return lambda state, x: ({"p": 2 * state["p"], "q": copy(state["p"])}, copy(state["p"]))


def scaled_by_norm(copy: Callable[[Tensor], Tensor]):
    """A report of the old value and the norm of a gradient, which comes after the update."""

    def step(state: Any, x: Tensor):
        g = x.T @ (x @ state["p"])
        return {"p": state["p"] - g, "q": state["q"]}, copy(state["p"]) * g.square().sum()

    return step


@pytest.mark.parametrize("make", [exchange, kept, scaled_by_norm])
@pytest.mark.parametrize("name", COPIES)
def test_copies_of_old_values(make: Callable[..., Any], name: str):
    assert_old_values(make(COPIES[name]), "aot_eager")


def test_copies_of_old_values_through_inductor():
    """All in one program, whose compilation takes a while."""
    steps = [make(copy) for make in (exchange, kept) for copy in COPIES.values()]

    def step(states: list[Any], x: Tensor):
        both = [f(state, x) for f, state in zip(steps, states, strict=True)]
        return [state for state, _ in both], [value for _, value in both]

    states = [{"p": P + i, "q": Q + i} for i in range(len(steps))]
    want = step(states, X)
    got = fl.jit(step, donate=0)(fl.tree.map(torch.clone, states), X)
    assert_trees_equal(got[0], want[0])
    fl.tree.map(torch.testing.assert_close, got[1], want[1])


def test_what_is_written_into_an_intermediate_keeps_its_order():
    def step(state: Any, x: Tensor):
        g = x.T @ (x @ state["p"])
        total = g.sum()
        g.clamp_(-0.1, 0.1)
        return {"p": state["p"] - g, "q": state["q"]}, total

    assert_old_values(step, "aot_eager")


def assert_old_values(step: Callable[..., Any], backend: str) -> None:
    want = step({"p": P, "q": Q}, X)
    got = fl.jit(step, donate=0, backend=backend)({"p": P.clone(), "q": Q.clone()}, X)
    fl.tree.map(torch.testing.assert_close, got, want)


def test_threads_compile_one_after_the_other():
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            f = fl.jit(lambda x: (x + number).sin().sum(), backend="aot_eager")
            torch.testing.assert_close(f(X), (X + number).sin().sum())
        except BaseException as error:  # told below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
