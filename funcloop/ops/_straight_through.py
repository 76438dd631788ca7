"""Straight-through functions: the value of one function, the derivatives of another.

Bengio, Léonard and Courville (2013), "Estimating or propagating gradients through stochastic
neurons for conditional computation", arXiv 1308.3432.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from funcloop._pytree import PyTree, flatten, unflatten
from funcloop.ops._function import function
from funcloop.ops._rule import inner_product


def straight_through(
    forward: Callable[..., PyTree], surrogate: Callable[..., PyTree]
) -> Callable[..., PyTree]:
    """A function with the value of `forward` and the derivatives of `surrogate`, of every order.

    `surrogate(x) + stop_gradient(forward(x) - surrogate(x))` has the same derivatives but loses the
    value to rounding where the two are far apart; this one does not.

    Args:
        forward: `(*inputs) -> output`, any pytrees.
        surrogate: A smooth function of the same inputs, with an output of the same structure and
            shapes. It may leave inputs unused: they get no gradient.

    Returns:
        The function `(*inputs) -> output`; it composes as those of `function` do.

    >>> import torch
    >>> step = straight_through(lambda x: (x > 0).float(), torch.sigmoid)
    >>> step(torch.tensor([-1.0, 2.0]))
    tensor([0., 1.])
    >>> torch.func.grad(step)(torch.tensor(0.0))
    tensor(0.2500)
    """
    pair = _Pair(forward, surrogate)

    @functools.wraps(forward)
    def apply(*inputs: PyTree) -> PyTree:
        return _through(pair, *inputs)

    return apply


class _Pair:
    """Two functions as one constant input."""

    __slots__ = ("forward", "surrogate")

    def __init__(self, forward: Callable[..., PyTree], surrogate: Callable[..., PyTree]) -> None:
        self.forward, self.surrogate = forward, surrogate


def _value(pair: _Pair, *inputs: PyTree) -> PyTree:
    return pair.forward(*inputs)


def _derivative(grad: PyTree, _: PyTree, pair: _Pair, *inputs: PyTree) -> tuple[PyTree, ...]:
    leaves, structure = flatten(inputs)
    places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.is_floating_point()]
    grads = flatten(grad)[0]

    def weighted(chosen: list[Tensor]) -> Tensor:
        filled = list(leaves)
        for place, tensor in zip(places, chosen, strict=True):
            filled[place] = tensor
        return inner_product(grads, flatten(pair.surrogate(*unflatten(structure, filled)))[0])

    # not torch.func.vjp, whose pullback runs when its level is gone: clamp then fails inside C++
    gradients = torch.func.grad(weighted)([leaves[i] for i in places])
    filled: list[Any] = [0] * len(leaves)  # a constant's gradient is not looked at
    for place, gradient in zip(places, gradients, strict=True):
        filled[place] = gradient
    return None, *unflatten(structure, filled)


_through = function(_value, _derivative)


def _unchanged(grad: Tensor, _: Tensor, x: Tensor) -> Tensor:
    return grad


_round = function(torch.round, _unchanged)
_floor = function(torch.floor, _unchanged)
_clamp = function(torch.clamp, lambda grad, _, x, low, high: (grad, None, None))


def ste_round(x: Tensor) -> Tensor:
    """Round half to even; the gradient passes unchanged.

    Args:
        x: Floating, any shape. NaN and infinities stay.

    >>> import torch
    >>> ste_round(torch.tensor([0.5, 1.5, 2.5, -0.5]))
    tensor([0., 2., 2., -0.])
    >>> torch.func.grad(ste_round)(torch.tensor(0.2))
    tensor(1.)
    """
    return _round(x)


def ste_floor(x: Tensor) -> Tensor:
    """Round down; the gradient passes unchanged.

    Args:
        x: Floating, any shape. NaN and infinities stay.

    >>> import torch
    >>> ste_floor(torch.tensor([0.7, -0.2])), torch.func.grad(ste_floor)(torch.tensor(0.7))
    (tensor([ 0., -1.]), tensor(1.))
    """
    return _floor(x)


def ste_clamp(
    x: Tensor, low: Tensor | float | None = None, high: Tensor | float | None = None
) -> Tensor:
    """Clamp to `[low, high]`; the gradient passes unchanged, outside too, and never to the bounds.

    Args:
        x: Floating, any shape. NaN stays.
        low: Lower bound, broadcast to the shape of x; None for none.
        high: Upper bound, broadcast to the shape of x; None for none.

    >>> import torch
    >>> ste_clamp(torch.tensor([-3.0, 0.5, 3.0]), -1.0, 1.0)
    tensor([-1.0000,  0.5000,  1.0000])
    >>> torch.func.grad(lambda x: ste_clamp(x, -1.0, 1.0))(torch.tensor(3.0))
    tensor(1.)
    """
    return _clamp(x, low, high)
