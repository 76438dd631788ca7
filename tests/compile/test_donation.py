"""Donated arguments are overwritten in place, once, and never silently used again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import funcloop as fl
from funcloop import tree
from funcloop._errors import ArgumentError, DonationError
from funcloop.compile import Donated, jit
from tests.laws import assert_trees_close, assert_trees_equal, snapshot


def step(state: Any, batch: Tensor) -> tuple[Any, dict[str, Tensor]]:
    """A state with an updated, a constant and two exchanged leaves; metrics that alias it."""
    w = state["w"] + batch.sum()
    new = {"w": w, "key": state["key"], "pair": (state["pair"][1], state["pair"][0])}
    return new, {"w": w, "key": state["key"], "view": state["pair"][0].view(1), "old": state["w"]}


def initial(device: torch.device | str = "cpu") -> Any:
    state = {
        "w": torch.zeros(3),
        "key": torch.tensor([1, 2]),
        "pair": (torch.tensor(1.0), torch.tensor(2.0)),
    }
    return tree.map(lambda x: x.to(device), state)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_donated_leaves_are_written_in_place(backend: str, device: torch.device) -> None:
    donating, batch = jit(step, donate=0, backend=backend), torch.ones(2, device=device)
    state, want, seen = initial(device), initial(device), []
    places = [leaf.data_ptr() for leaf in tree.leaves(state)]
    for _ in range(3):
        state, metrics = donating(state, batch)
        want, wanted_metrics = step(want, batch)
        assert_trees_equal(state, want)
        assert [leaf.data_ptr() for leaf in tree.leaves(state)] == places
        seen.append((metrics, snapshot(wanted_metrics)))
    for metrics, wanted in seen:  # later calls do not write into what earlier ones returned
        assert_trees_equal(metrics, wanted)
    assert donating.traces == 1


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4), st.integers(0, 1))
def test_donated_equals_not_donated(order: list[int], delay: int) -> None:
    """Any permutation, repetition and delay of the leaves of a state."""

    def shift(state: list[Tensor], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        new = [state[i] * 2 if k == delay else state[i] for k, i in enumerate(order)]
        return new, [state[0].view(2, 1), x + state[3]]

    donating = jit(shift, donate=0, backend="aot_eager")
    state = [torch.full((2,), float(i)) for i in range(4)]
    for _ in range(2):
        want = shift([leaf.clone() for leaf in state], torch.ones(2))
        state, extra = donating(state, torch.ones(2))
        assert_trees_close((state, extra), want)
        assert len({leaf.data_ptr() for leaf in state}) == 4


def test_a_donated_state_cannot_be_used_again() -> None:
    donating = jit(step, donate=0, backend="aot_eager")
    state = initial()
    new, _ = donating(state, torch.ones(2))
    assert isinstance(state["w"], Donated)
    assert repr(state["w"]) == "<donated tensor>"
    uses = [
        lambda: state["w"] + 1,
        lambda: state["w"].shape,
        lambda: state["w"].sum(),
        lambda: torch.ones(3) * state["w"],
        lambda: donating(state, torch.ones(2)),
        lambda: step(state, torch.ones(2)),
    ]
    for use in uses:
        with pytest.raises(DonationError, match="use the state that the call returned"):
            use()
    donating(new, torch.ones(2))


def test_a_failing_call_says_that_the_state_is_lost() -> None:
    def look_up(state: dict[str, Tensor], index: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return {"table": state["table"] * 2}, state["table"][index]

    state = {"table": torch.ones(4)}
    donating = jit(look_up, donate=0, backend="aot_eager")
    with pytest.raises(IndexError):
        donating(state, torch.tensor([9]))
    with pytest.raises(DonationError, match=r"donated to a call that raised.*checkpoint"):
        state["table"].sum()


def test_a_failing_trace_leaves_the_state_usable() -> None:
    state = initial()
    with pytest.raises(RuntimeError):
        jit(lambda s, x: ({**s, "w": s["w"] @ x}, x), donate=0, backend="aot_eager")(
            state, torch.ones(2)
        )
    assert state["w"].sum() == 0


def test_aliased_donations_are_refused_by_path() -> None:
    donating = jit(lambda s, x: ({k: v + x.sum() for k, v in s.items()}, x), donate=0)
    w = torch.ones(4)
    with pytest.raises(DonationError, match="0/0/a and 0/0/b share their storage"):
        donating({"a": w, "b": w}, torch.ones(1))
    with pytest.raises(DonationError, match="0/0/a and 0/0/b share their storage"):
        donating({"a": w[:2], "b": w[2:]}, torch.ones(1))
    with pytest.raises(DonationError, match="0/0/a shares its storage with an argument"):
        donating({"a": w[:2], "b": torch.ones(2)}, w[3:])
    assert w.sum() == 4


def test_a_donation_needs_an_output_in_its_place() -> None:
    with pytest.raises(DonationError, match=r"no output has the structure.*\['w'\]"):
        jit(lambda s: s["w"].sum(), donate=0, backend="aot_eager")({"w": torch.ones(2)})
    with pytest.raises(ArgumentError, match="argument 1 of a call with 1"):
        jit(lambda s: s, donate=1, backend="aot_eager")(torch.ones(1))


def test_two_donated_arguments_of_one_structure(device: torch.device) -> None:
    donating = jit(lambda a, b: (a + 1, b + 2), donate=(0, 1), backend="aot_eager")
    a, b = torch.zeros(2, device=device), torch.zeros(2, device=device)
    places = a.data_ptr(), b.data_ptr()
    a, b = donating(a, b)
    assert (a.tolist(), b.tolist()) == ([1.0, 1.0], [2.0, 2.0])
    assert (a.data_ptr(), b.data_ptr()) == places


def test_many_runs_train_in_place_at_once() -> None:
    """A vmapped step over stacked states, as an ensemble is trained, with a seed for each run."""
    model = fl.stateless(torch.nn.Linear(3, 2))
    tx = fl.optim.adamw(0.1)
    plain = fl.train_step(fl.value_and_grad(fl.supervised(model, F.mse_loss)), tx)
    batch = torch.randn(5, 3), torch.randn(5, 2)
    params, buffers = model.init()
    runs = [
        fl.TrainState.create(
            tree.map(lambda p, i=i: p + i, params), buffers, tx, key=fl.random.key(i)
        )
        for i in range(3)
    ]
    stacked = tree.map(lambda *leaves: torch.stack(leaves), *runs)
    places = [leaf.data_ptr() for leaf in tree.leaves(stacked)]
    together = jit(torch.func.vmap(plain, in_dims=(0, None)), donate=0, backend="aot_eager")
    for _ in range(2):
        stacked, _ = together(stacked, batch)
        runs = [plain(state, batch)[0] for state in runs]
    assert [leaf.data_ptr() for leaf in tree.leaves(stacked)] == places
    assert_trees_close(stacked, tree.map(lambda *leaves: torch.stack(leaves), *runs), 1e-5)
