"""An accountant that a compiled step can ask: the epsilon of a number of steps, as a tensor."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop.privacy._accounting import Method, epsilon, epsilons

#: So many points of the curve of epsilon over steps are computed.
_POINTS = 32


class Accountant(NamedTuple):
    """What a run spends. Its state is the number of steps, which is in the TrainState.

    Attributes:
        noise_multiplier: See `epsilon`.
        sampling_probability: See `epsilon`.
        delta: See `epsilon`.
        steps: How many steps the run may have; `bound` is infinite beyond them.
        method: See `epsilon`.

    >>> accountant = Accountant(1.0, 0.01, 1e-5, steps=100, method="rdp")
    >>> spent = accountant.epsilon(50)
    >>> spent <= float(accountant.bound(torch.tensor(50))) < 1.01 * spent
    True
    """

    noise_multiplier: float
    sampling_probability: float
    delta: float
    steps: int
    method: Method = "pld"

    def epsilon(self, steps: int | Tensor) -> float:
        """The epsilon after so many steps, exactly as dp-accounting has it."""
        return epsilon(
            noise_multiplier=self.noise_multiplier,
            sampling_probability=self.sampling_probability,
            steps=int(steps),
            delta=self.delta,
            method=self.method,
        )

    def bound(self, steps: Tensor) -> Tensor:
        """An upper bound on it for a count inside a compiled step, 0-d float32.

        The curve is computed once at some numbers of steps; in between, the next one counts.
        """
        if self.steps < 1:
            raise ArgumentError(
                "an accountant plans at least one step", str(self.steps), "correct it"
            )
        counts, values = _curve(self)
        grid = torch.tensor(counts, device=steps.device)
        curve = torch.tensor([*values, torch.inf], device=steps.device)
        # Indexing with a 0-d tensor would look at its value.
        return curve.index_select(0, (grid < steps).sum()[None])[0]


@functools.lru_cache(maxsize=32)
def _curve(accountant: Accountant) -> tuple[list[int], list[float]]:
    # Python's numbers, not tensors: the first call may be inside a trace.
    points = min(_POINTS, accountant.steps)
    counts = [-(-accountant.steps * k // points) for k in range(points + 1)]
    plan = accountant.noise_multiplier, accountant.sampling_probability
    return counts, epsilons(*plan, counts, accountant.delta, accountant.method)
