"""Rules of the methods that fill a tensor in place with random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from funcloop._types import Key
from funcloop.random._bernoulli import bernoulli
from funcloop.random._cauchy import cauchy
from funcloop.random._exponential import exponential
from funcloop.random._floating import resolve
from funcloop.random._geometric import geometric
from funcloop.random._normal import normal
from funcloop.random._randint import randint
from funcloop.random._routing import Function, Route, Rule, bind, fill
from funcloop.random._uniform import uniform


def _fill(spec: Mapping[str, Any], sample: Callable[..., Tensor]) -> Rule:
    """`sample(key, x, *values of spec)` gives what is copied into x."""
    spec = {"self": None, **spec}

    def rule(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
        x, *values = bind(func, spec, args, kwargs)
        return fill(func, x, sample(route.take(func, x.device), x, *values))

    return rule


def _uniform(key: Key, x: Tensor, low: float, high: float) -> Tensor:
    return uniform(key, x.shape, minval=low, maxval=high, dtype=x.dtype)


def _normal(key: Key, x: Tensor, mean: float, std: float) -> Tensor:
    return mean + std * normal(key, x.shape, dtype=_wide(x))


def _log_normal(key: Key, x: Tensor, mean: float, std: float) -> Tensor:
    return _normal(key, x, mean, std).exp()


def _exponential(key: Key, x: Tensor, rate: float) -> Tensor:
    return exponential(key, x.shape, dtype=x.dtype) / rate


def _cauchy(key: Key, x: Tensor, median: float, sigma: float) -> Tensor:
    return median + sigma * cauchy(key, x.shape, dtype=_wide(x))


def _geometric(key: Key, x: Tensor, p: float) -> Tensor:
    return geometric(key, p, x.shape, dtype=x.dtype)


def _bernoulli(key: Key, x: Tensor, p: float | Tensor) -> Tensor:
    return bernoulli(key, p, x.shape, dtype=x.dtype)


def _random(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
    """`random_()`, `random_(to)` and `random_(from, to)`."""
    named = dict(kwargs)
    if len(args) == 2 and "to" not in named:
        args, named["to"] = args[:1], args[1]
    x, low, high = bind(func, {"self": None, "from": 0, "to": None}, args, named)
    high = _end(x.dtype) if high is None else high
    key = route.take(func, x.device)
    return fill(func, x, randint(key, x.shape, low, high, dtype=x.dtype))


def _end(dtype: torch.dtype) -> int:
    """torch's range: all non-negative integers that the dtype holds without a gap."""
    if dtype is torch.bool:
        return 2
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps) + 1
    return torch.iinfo(dtype).max + 1


def _wide(x: Tensor) -> torch.dtype:
    return resolve(x.dtype)[1]


FILLS: dict[Function, Rule] = {
    Tensor.uniform_: _fill({"from": 0.0, "to": 1.0}, _uniform),
    Tensor.normal_: _fill({"mean": 0.0, "std": 1.0}, _normal),
    Tensor.log_normal_: _fill({"mean": 1.0, "std": 2.0}, _log_normal),
    Tensor.exponential_: _fill({"lambd": 1.0}, _exponential),
    Tensor.cauchy_: _fill({"median": 0.0, "sigma": 1.0}, _cauchy),
    Tensor.geometric_: _fill({"p": None}, _geometric),
    Tensor.bernoulli_: _fill({"p": 0.5}, _bernoulli),
    Tensor.random_: _random,
}
