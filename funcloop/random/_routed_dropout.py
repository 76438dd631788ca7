"""Rules of the dropout family and of rrelu: torch's formulas with a mask from the key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._types import Key
from funcloop.random._bernoulli import require_probability
from funcloop.random._dropout import dropout, dropped, keep_scale
from funcloop.random._routing import Function, Route, Rule, bind, fill
from funcloop.random._uniform import uniform

#: Minus the limit of SELU at minus infinity (Klambauer et al. 2017, arXiv:1706.02515).
_ALPHA = 1.7580993408473766


def _elements(key: Key, x: Tensor, p: float) -> Tensor:
    return dropout(key, x, p)


def _features(key: Key, x: Tensor, p: float) -> Tensor:
    """Whole channels of x (N, C, *) are dropped."""
    return torch.where(dropped(key, _channels(x), p), 0, x * keep_scale(p, x.dtype))


def _alpha(key: Key, x: Tensor, p: float) -> Tensor:
    return _to_alpha(x, dropped(key, x.shape, p), p)


def _alpha_features(key: Key, x: Tensor, p: float) -> Tensor:
    return _to_alpha(x, dropped(key, _channels(x), p), p)


def _to_alpha(x: Tensor, mask: Tensor, p: float) -> Tensor:
    """Dropped elements become -alpha; the scale and shift restore mean zero and variance one."""
    scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
    shift = _ALPHA * scale * p
    return torch.where(mask, shift - _ALPHA * scale, x * scale + shift)


def _channels(x: Tensor) -> tuple[int, ...]:
    """The shape of one flip for each channel.

    Raises:
        ArgumentError: x has no channels.
    """
    if x.ndim < 2:
        raise ArgumentError(
            "feature dropout needs a batch and a channel dimension",
            f"shape {tuple(x.shape)}",
            "give (N, C, ...)",
        )
    return (*x.shape[:2], *[1] * (x.ndim - 2))


def _rule(sample: Callable[[Key, Tensor, float], Tensor], inplace: bool = False) -> Rule:
    spec = {"input": None, "p": 0.5, "train": True}

    def rule(route: Route, func: Function, *args: Any, **kwargs: Any) -> Any:
        x, p, train = bind(func, spec, args, kwargs)
        require_probability(p)
        if not train or p in (0, 1) or x.numel() == 0:
            return func(*args, **kwargs)
        value = sample(route.take(func, x.device), x, p)
        return fill(func, x, value) if inplace else value

    return rule


def _dropout(
    route: Route,
    func: Function,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    require_probability(p)
    if not training or p in (0, 1) or input.numel() == 0:
        return func(input, p, training, inplace)
    value = dropout(route.take(func, input.device), input, p)
    return fill(func, input, value) if inplace else value


def _native_dropout(route: Route, func: Function, *args: Any, **kwargs: Any) -> Any:
    x, p, train = bind(func, {"input": None, "p": 0.5, "train": True}, args, kwargs)
    require_probability(p)
    if train is False or p in (0, 1) or x.numel() == 0:
        return func(*args, **kwargs)
    mask = dropped(route.take(func, x.device), x.shape, p)
    return torch.where(mask, 0, x * keep_scale(p, x.dtype)), ~mask


def _rrelu(inplace: bool) -> Rule:
    spec = {"input": None, "lower": 1 / 8, "upper": 1 / 3, "training": False}

    def rule(route: Route, func: Function, *args: Any, **kwargs: Any) -> Any:
        x, lower, upper, training = bind(func, spec, args, kwargs)
        if not training:
            return func(*args, **kwargs)
        key = route.take(func, x.device)
        slope = uniform(key, x.shape, minval=lower, maxval=upper, dtype=x.dtype)
        value = torch.where(x > 0, x, x * slope)
        return fill(func, x, value) if inplace else value

    return rule


DROPOUTS: dict[Function, Rule] = {
    F.dropout: _dropout,
    torch.dropout: _rule(_elements),
    torch.dropout_: _rule(_elements, inplace=True),
    torch.feature_dropout: _rule(_features),
    torch.feature_dropout_: _rule(_features, inplace=True),
    torch.alpha_dropout: _rule(_alpha),
    torch.alpha_dropout_: _rule(_alpha, inplace=True),
    torch.feature_alpha_dropout: _rule(_alpha_features),
    torch.feature_alpha_dropout_: _rule(_alpha_features, inplace=True),
    torch.native_dropout: _native_dropout,
    torch.rrelu: _rrelu(inplace=False),
    torch.rrelu_: _rrelu(inplace=True),
}
