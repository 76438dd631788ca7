"""Rules of the functions that return a new random tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcloop._types import Key
from funcloop.random._bernoulli import bernoulli
from funcloop.random._categorical import categorical, without_replacement
from funcloop.random._floating import resolve
from funcloop.random._normal import normal
from funcloop.random._permutation import permutation
from funcloop.random._randint import randint
from funcloop.random._routing import Function, Route, Rule, bind, options_of, refuse
from funcloop.random._uniform import uniform


def _uniform(key: Key, shape: Sequence[int], dtype: torch.dtype | None) -> Tensor:
    return uniform(key, shape, dtype=dtype)


def _normal(key: Key, shape: Sequence[int], dtype: torch.dtype | None) -> Tensor:
    return normal(key, shape, dtype=dtype)


def _sized(sample: Any) -> Rule:
    def rule(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
        options = dict(kwargs)
        size = options.pop("size", args)
        dtype, device, grad = options_of(func, options)
        return _leaf(sample(route.take(func, device), _shape(size), dtype), grad)

    return rule


def _alike(sample: Any) -> Rule:
    def rule(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
        options = dict(kwargs)
        like = args[0] if args else options.pop("input")
        dtype, device, grad = options_of(func, options, like)
        return _leaf(sample(route.take(func, device), like.shape, dtype), grad)

    return rule


def _leaf(value: Tensor, grad: bool) -> Tensor:
    # torch.func's transforms refuse the call even where it changes nothing.
    return value.requires_grad_() if grad else value


def _shape(size: Any) -> Sequence[int]:
    """`(2, 3)`, `((2, 3),)` and `2` are the same size."""
    if isinstance(size, int):
        return (size,)
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], Sequence) else tuple(size)


def _randint(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
    options = dict(kwargs)
    ends = [options.pop(name) for name in ("low", "high") if name in options]
    size = options.pop("size", None)
    rest = list(args)
    size = rest.pop() if size is None else size
    low, high = _range([*rest, *ends])
    dtype, device, grad = options_of(func, options)
    key = route.take(func, device)
    result = randint(key, _shape(size), low, high, dtype=dtype or torch.int64)
    return _leaf(result, grad)


def _randint_like(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
    options = dict(kwargs)
    ends = [options.pop(name) for name in ("low", "high") if name in options]
    like, *rest = args if args else (options.pop("input"),)
    low, high = _range([*rest, *ends])
    dtype, device, grad = options_of(func, options, like)
    key = route.take(func, device)
    return _leaf(randint(key, like.shape, low, high, dtype=dtype or like.dtype), grad)


def _range(ends: Sequence[int]) -> tuple[int, int]:
    return (0, ends[0]) if len(ends) == 1 else (ends[0], ends[1])


def _randperm(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
    options = dict(kwargs)
    n = args[0] if args else options.pop("n")
    dtype, device, grad = options_of(func, options)
    order = permutation(route.take(func, device), n)
    return _leaf(order.to(dtype or torch.int64), grad)


def _normal_of(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
    given = {**dict(zip(("mean", "std", "size"), args, strict=False)), **kwargs}
    mean, std = given.pop("mean", 0.0), given.pop("std", 1.0)
    size = given.pop("size", None)
    tensors = [v for v in (mean, std) if isinstance(v, Tensor)]
    like = tensors[0] if tensors else None
    dtype, device, grad = options_of(func, given, like)
    if size is None:
        size = torch.broadcast_shapes(*[v.shape for v in tensors])
    dtype, wide, _ = resolve(dtype)
    noise = normal(route.take(func, device), _shape(size), dtype=wide)
    return _leaf((mean + std * noise).to(dtype), grad)


def _bernoulli(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
    x, p = bind(func, {"input": None, "p": None}, args, kwargs)
    key = route.take(func, x.device)
    return bernoulli(key, x if p is None else p, x.shape, dtype=x.dtype)


def _multinomial(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
    spec = {"input": None, "num_samples": None, "replacement": False}
    weights, count, replace = bind(func, spec, args, kwargs)
    if not replace and count > weights.shape[-1]:
        refuse(
            func, f"cannot take {count} of {weights.shape[-1]}", "take fewer, or replacement=True"
        )
    key = route.take(func, weights.device)
    if not replace:
        return without_replacement(key, weights.log(), count)
    return categorical(key, weights.log(), (count,)).movedim(0, -1)


FACTORIES: dict[Function, Rule] = {
    torch.rand: _sized(_uniform),
    torch.randn: _sized(_normal),
    torch.rand_like: _alike(_uniform),
    torch.randn_like: _alike(_normal),
    torch.randint: _randint,
    torch.randint_like: _randint_like,
    torch.randperm: _randperm,
    torch.normal: _normal_of,
    torch.bernoulli: _bernoulli,
    torch.Tensor.bernoulli: _bernoulli,
    torch.multinomial: _multinomial,
    torch.Tensor.multinomial: _multinomial,
}
