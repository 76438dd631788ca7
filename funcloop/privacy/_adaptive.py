"""The clipping norm as a tracked quantile (Andrew et al. 2021, arXiv 1905.03871)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from funcloop import random
from funcloop._errors import ArgumentError
from funcloop._types import Key


class AdaptiveNorm(NamedTuple):
    """A clipping norm that follows a quantile of the gradients' norms; made by `adaptive_norm`.

    Attributes:
        initial: The norm of the first step.
        quantile: The fraction of examples that shall not be clipped.
        learning_rate: Of the geometric update.
        count_noise: The standard deviation of the noise on the count of unclipped examples.
    """

    initial: float
    quantile: float
    learning_rate: float
    count_noise: float

    def split_noise(self, noise_multiplier: float) -> float:
        """The multiplier on the gradient, so that with the count the step costs as without it.

        `(z^-2 - (2 b)^-2)^-1/2`: the count, moved around zero, has sensitivity one half.

        Raises:
            ArgumentError: the count's noise alone is too small for this.
        """
        if noise_multiplier == 0:
            return 0.0
        rest = noise_multiplier**-2 - (2 * self.count_noise) ** -2
        if rest <= 0:
            raise ArgumentError(
                "the noise on the count is more than half the noise multiplier",
                f"count_noise={self.count_noise} for noise_multiplier={noise_multiplier}",
                "raise count_noise; a twentieth of the expected batch size is usual",
            )
        return rest**-0.5

    def step(self, max_norm: Tensor, unclipped: Tensor, expected: float, key: Key) -> Tensor:
        """The norm of the next step, from the number of examples that were not clipped."""
        noise = self.count_noise * random.normal(key, (1,), dtype=torch.float64)[0].to(unclipped)
        fraction = (unclipped + noise) / expected
        return max_norm * torch.exp(-self.learning_rate * (fraction - self.quantile))


def adaptive_norm(
    initial: float = 0.1,
    *,
    quantile: float = 0.5,
    learning_rate: float = 0.2,
    count_noise: float,
) -> AdaptiveNorm:
    """A `max_norm` for `dp_sgd` that finds itself, privately, at no extra cost in epsilon.

    After each step the norm is multiplied by `exp(-learning_rate * (b - quantile))`, where `b` is
    the noisy fraction of examples with a gradient below it. The norm is kept in the buffers: begin
    with `buffers = grad_fn.init(buffers)`.

    Args:
        initial: The first norm.
        quantile: The fraction of examples that shall not be clipped, in [0, 1].
        learning_rate: Of the geometric update.
        count_noise: Standard deviation of the noise on the count of unclipped examples; a
            twentieth of the expected batch size is usual. More than half the noise multiplier.

    Raises:
        ArgumentError: a number is out of range.

    >>> adaptive_norm(1.0, count_noise=10.0).split_noise(1.0)
    1.0012523486435176
    """
    if not (
        0 < initial < math.inf and 0 <= quantile <= 1 and learning_rate > 0 and count_noise > 0
    ):
        raise ArgumentError(
            "an adaptive norm needs a finite initial, learning_rate and count_noise above zero, "
            "and a quantile between zero and one",
            f"{initial=}, {quantile=}, {learning_rate=}, {count_noise=}",
            "correct it",
        )
    return AdaptiveNorm(initial, quantile, learning_rate, count_noise)
