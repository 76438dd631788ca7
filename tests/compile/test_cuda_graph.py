"""What surrounds a CUDA graph, with a recorder that any device can play."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import funcloop as fl
from funcloop.compile._cuda_graph import WARM_UP, Recorded, recorded


class Tape:
    """Records as CUDA does: nothing is computed while recording, and replays write one memory."""

    def __init__(self, state: Tensor) -> None:
        self.state, self.recordings = state, 0

    def __call__(
        self, f: Callable[[], Sequence[Tensor]]
    ) -> tuple[Callable[[], None], Sequence[Tensor]]:
        self.recordings += 1
        before = self.state.clone()
        outputs = f()
        self.state.copy_(before)

        def replay() -> None:
            for old, new in zip(outputs, f(), strict=True):
                old.copy_(new)

        return replay, outputs


def add(inputs: list[Tensor]) -> list[Tensor]:
    """state += x, and the sum of both."""
    state, x = inputs
    inputs.clear()
    state.add_(x)
    return [state.sum() + x.sum()]


def test_replays_equal_calls_and_outputs_outlive_the_next_one():
    state, want = torch.zeros(3), torch.zeros(3)
    tape = Tape(state)
    code = Recorded(add, frozenset({0}), tape)
    outputs, wanted = [], []
    for number in range(6):
        x = torch.full((3,), float(number))
        outputs += code([state, x])
        wanted += add([want, x])
        torch.testing.assert_close(state, want)
    torch.testing.assert_close(outputs, wanted)
    assert tape.recordings == 1


def test_a_state_elsewhere_is_recorded_anew():
    first, second = torch.zeros(3), torch.ones(3)
    tape = Tape(first)
    code = Recorded(add, frozenset({0}), tape)
    for _ in range(WARM_UP + 1):
        code([first, torch.ones(3)])
    tape.state = second
    code([second, torch.ones(3)])
    assert tape.recordings == 2
    assert first.tolist() == [WARM_UP + 1] * 3
    assert second.tolist() == [2] * 3


def test_elsewhere_than_on_cuda_nothing_changes():
    assert recorded(add, [torch.ones(1)], frozenset()) is add
    f = fl.jit(lambda state, x: state + x, donate=0, options={"cudagraphs": True})
    state = torch.zeros(2)
    for _ in range(4):
        state = f(state, torch.ones(2))
    assert state.tolist() == [4, 4]


def test_a_donated_state_on_the_device(device):
    """On CUDA this one is replayed for real."""
    f = fl.jit(
        lambda state, x: (state * 0.5 + x, (state - x).sum()),
        donate=0,
        options={"cudagraphs": True},
    )
    state, want = torch.zeros(5, device=device), torch.zeros(5, device=device)
    sums, wanted = [], []
    for number in range(6):
        x = torch.full((5,), float(number), device=device)
        state, total = f(state, x)
        wanted.append((want - x).sum())
        want = want * 0.5 + x
        sums.append(total)
        torch.testing.assert_close(state, want)
    torch.testing.assert_close(sums, wanted)
