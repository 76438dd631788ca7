"""Loss scales: what a loss is multiplied by, so that its gradients do not vanish in float16."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from funcloop._errors import ArgumentError


class LossScale(Protocol):
    """A loss scale as a value; goes into `TrainState.loss_scale`."""

    @property
    def scale(self) -> Tensor:
        """The factor, 0-d float32."""
        ...

    def adjust(self, finite: Tensor) -> LossScale:
        """The scale after a step whose gradients were all finite, or were not (0-d bool)."""
        ...


class Static(NamedTuple):
    """A loss scale that stays as it is.

    Attributes:
        scale: The factor, 0-d float32.
    """

    scale: Tensor

    def adjust(self, finite: Tensor) -> Static:
        """Itself."""
        return self


class Dynamic(NamedTuple):
    """A loss scale that grows while all goes well; the state of torch.amp.GradScaler.

    Attributes:
        scale: The factor, 0-d float32.
        successes: Finite steps since the last change, 0-d int64.
        growth_factor: What the scale is multiplied by after enough of them, 0-d float64.
        backoff_factor: What it is multiplied by after a step that is not finite, 0-d float64.
        growth_interval: How many finite steps are enough, 0-d int64.
    """

    scale: Tensor
    successes: Tensor
    growth_factor: Tensor
    backoff_factor: Tensor
    growth_interval: Tensor

    def adjust(self, finite: Tensor) -> Dynamic:
        """The scale after a step: smaller if it was not finite, larger after enough finite ones."""
        successes = self.successes + 1
        full = successes == self.growth_interval
        larger = (self.scale.double() * self.growth_factor).float()
        larger = torch.where(full & larger.isfinite(), larger, self.scale)
        smaller = (self.scale.double() * self.backoff_factor).float()
        return self._replace(
            scale=torch.where(finite, larger, smaller),
            successes=torch.where(finite & ~full, successes, 0),
        )


def static(scale: float) -> Static:
    """A loss scale that stays as it is; a step that overflows is skipped all the same.

    Args:
        scale: Positive; a power of two scales without rounding.

    Raises:
        ArgumentError: it is not positive.

    >>> static(1024.0)
    Static(scale=tensor(1024.))
    """
    return Static(_positive("scale", scale).float())


def dynamic(
    scale: float = 65536.0,
    *,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
) -> Dynamic:
    """A loss scale that finds itself, step for step as torch.amp.GradScaler does.

    Args:
        scale: What to begin with.
        growth_factor: Above one.
        backoff_factor: Below one.
        growth_interval: Finite steps until it grows; at least one.

    Raises:
        ArgumentError: a number is out of range.

    >>> scale = dynamic(1024.0)
    >>> scale.adjust(torch.tensor(False)).scale
    tensor(512.)
    """
    if not growth_factor > 1 or not 0 < backoff_factor < 1 or growth_interval < 1:
        raise ArgumentError(
            "a loss scale grows by a factor above one and backs off by one below",
            f"growth_factor={growth_factor}, backoff_factor={backoff_factor}, "
            f"growth_interval={growth_interval}",
            "correct them; the interval is at least one",
        )
    return Dynamic(
        _positive("scale", scale).float(),
        torch.zeros((), dtype=torch.int64),
        torch.tensor(growth_factor, dtype=torch.float64),
        torch.tensor(backoff_factor, dtype=torch.float64),
        torch.tensor(growth_interval, dtype=torch.int64),
    )


def _positive(name: str, value: float) -> Tensor:
    if not 0 < value < float("inf"):
        raise ArgumentError(f"{name} is positive and finite", str(value), "give a power of two")
    return torch.tensor(value, dtype=torch.float64)
