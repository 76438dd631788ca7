"""Kernels recorded once and replayed together: `options={"cudagraphs": True}`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from funcloop.compile._backend import Code

#: Calls before recording: libraries choose their algorithms and allocate in the first ones.
WARM_UP = 2
Recorder = Callable[[Callable[[], Sequence[Tensor]]], tuple[Callable[[], None], Sequence[Tensor]]]


class Recorded:
    """Code whose kernels are replayed from a CUDA graph.

    A graph reads and writes fixed addresses. What is donated keeps its own, so the graph updates it
    where it lies; the other inputs are copied to where the graph reads, and the outputs are copied
    out, so that a later call never overwrites what an earlier one has returned. A state at other
    addresses is recorded anew.
    """

    def __init__(self, code: Code, donated: frozenset[int], record: Recorder) -> None:
        self._code = code
        self._donated = donated
        self._record = record
        self._calls = 0
        self._addresses: list[int] = []

    def __call__(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        """The outputs; the list is emptied."""
        if self._calls < WARM_UP:
            self._calls += 1
            return self._code(inputs)
        addresses = [inputs[i].data_ptr() for i in sorted(self._donated)]
        if self._calls == WARM_UP or addresses != self._addresses:
            self._calls += 1
            self._addresses = addresses
            self._capture(inputs)
        for i, place in self._places.items():
            place.copy_(inputs[i])
        inputs.clear()
        self._replay()
        return [output.clone() for output in self._outputs]

    def _capture(self, inputs: Sequence[Tensor]) -> None:
        """Recording runs nothing: the call that follows replays."""
        self._places = {i: x.clone() for i, x in enumerate(inputs) if i not in self._donated}
        given = [self._places.get(i, x) for i, x in enumerate(inputs)]
        self._replay, self._outputs = self._record(lambda: self._code(list(given)))


def recorded(code: Code, fakes: Sequence[Tensor], donated: frozenset[int]) -> Code:
    """The code behind a CUDA graph, where every input lies on one CUDA device; otherwise itself.

    Args:
        code: Takes the inputs in a list.
        fakes: Like the inputs.
        donated: The numbers of those that are overwritten in place.
    """
    devices = {fake.device for fake in fakes}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        return code
    return Recorded(code, donated, _record)


def _record(
    f: Callable[[], Sequence[Tensor]],
) -> tuple[Callable[[], None], Sequence[Tensor]]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = f()
    return graph.replay, outputs
