"""Hyperparameters: a number, a 0-d tensor, or a schedule of the update count."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._pytree import flatten
from funcloop._types import Params, Schedule

#: A float, a 0-d tensor (which may be a jit argument or carry a gradient), or a schedule.
Hyper: TypeAlias = "float | Tensor | Schedule"


def value_at(hyper: Hyper, count: Tensor) -> Any:
    """The float or 0-d tensor that `hyper` is at the update with this count."""
    return hyper(count) if callable(hyper) else hyper


def as_schedule(hyper: Hyper) -> Schedule:
    """`hyper` as a function of the count; a number becomes a float64 tensor."""

    def schedule(count: Tensor, /) -> Tensor:
        return as_tensor(value_at(hyper, count), count)

    return schedule


def as_tensor(value: float | Tensor, count: Tensor) -> Tensor:
    """A 0-d tensor on the device of `count`; a float becomes float64, so that it loses nothing."""
    if isinstance(value, Tensor):
        return value.to(count.device).clone()  # a state never shares memory with an argument
    return torch.full((), value, dtype=torch.float64, device=count.device)


def power(base: float | Tensor, count: Tensor) -> Tensor:
    """`base ** count` in float64: 1 - 0.999 ** 1 keeps only three digits in float32."""
    exponent = count.to(torch.float64)
    if isinstance(base, Tensor):
        return torch.pow(base.to(torch.float64), exponent)
    return torch.pow(base, exponent)


def zero_count(params: Params) -> Tensor:
    """An update count of zero, int64, on the device of the params."""
    leaves = flatten(params)[0]
    return torch.zeros((), dtype=torch.int64, device=leaves[0].device if leaves else None)


def is_zero(hyper: Hyper) -> bool:
    """Whether `hyper` is a plain number zero, which switches its transform off."""
    return isinstance(hyper, (int, float)) and hyper == 0


def check_range(
    name: str, hyper: Hyper, low: float = 0.0, high: float = float("inf"), *, open_low: bool = False
) -> None:
    """Refuse a plain number outside [low, high), or (low, high); tensors cannot be looked at.

    Raises:
        ArgumentError: the number lies outside.
    """
    if not isinstance(hyper, (int, float)):
        return
    if not ((low < hyper if open_low else low <= hyper) and hyper < high):
        bracket = "(" if open_low else "["
        raise ArgumentError(
            f"{name} lies in {bracket}{low:g}, {high:g})",
            f"{name}={hyper}",
            "choose a value inside the range",
        )


def check_betas(betas: tuple[Hyper, ...]) -> None:
    """Refuse a decay rate outside [0, 1).

    Raises:
        ArgumentError: one of them lies outside.
    """
    for i, beta in enumerate(betas):
        check_range(f"betas[{i}]", beta, 0.0, 1.0)
