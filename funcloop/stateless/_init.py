"""Fresh parameters from a key, by the modules' own rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from funcloop._compat import batch_levels, untraced
from funcloop._errors import ShapeError, UnsupportedError
from funcloop._pytree import tree_map
from funcloop._types import Key
from funcloop.stateless._guard import Guard
from funcloop.stateless._merge import copy_with
from funcloop.stateless._plan import Plan
from funcloop.stateless._wrappers import walk

Leaves = dict[str, Tensor]


def own_leaves(plan: Plan) -> tuple[Leaves, Leaves]:
    """Detached copies of the module's own params and buffers."""
    return _split(plan, plan.current())


def drawn_leaves(plan: Plan, key: Key) -> tuple[Leaves, Leaves]:
    """Params and buffers of a copy of the module whose parameters are drawn from the key.

    Raises:
        ShapeError: the key is neither (2,) nor (N, 2).
        UnsupportedError: no `reset_parameters` writes some parameter.
    """
    if key.ndim not in (1, 2) or key.shape[-1] != 2:
        raise ShapeError(
            "a key has shape (2,), and a batch of keys (N, 2)",
            f"a key of shape {tuple(key.shape)}",
            "make keys with funcloop.random.key and split",
        )
    if key.ndim == 1:
        return _draw(plan, key)
    members = [_draw(plan, member) for member in key.unbind()]
    return tree_map(lambda *leaves: torch.stack(leaves), *members)


def _draw(plan: Plan, key: Key) -> tuple[Leaves, Leaves]:
    with untraced():
        own = {name: tensor.detach().clone() for name, tensor in plan.current().items()}
    leaves = {name: _member_of(tensor.clone(), key) for name, tensor in own.items()}
    net = copy_with(plan, leaves)
    guard = Guard(key, leaves, leaves)
    with torch.no_grad(), guard:
        for _, module in reversed(list(walk(net))):  # children before parents, as constructors do
            _reset(module)
    guard.settle()
    drawn = {name: _leaf(net, name) for name in leaves}
    kept = [
        name
        for name, p in plan.parameters.items()
        if p.requires_grad and drawn[name] is leaves[name] and name not in guard.written
    ]
    if kept:
        raise UnsupportedError(
            "init(key) draws every trainable parameter by the reset_parameters of its module",
            f"none draws {kept}",
            "give the module that owns it a reset_parameters() method, or use init() without a key",
        )
    return _split(plan, drawn)


def _leaf(net: nn.Module, name: str) -> Tensor:
    path, _, local = name.rpartition(".")
    owner = net.get_submodule(path)
    return owner._parameters[local] if local in owner._parameters else owner._buffers[local]  # type: ignore[return-value]  # None is no leaf


def _reset(module: nn.Module) -> None:
    for name in ("reset_parameters", "_reset_parameters"):  # the latter in torch's attention
        reset = getattr(module, name, None)
        if reset is not None:
            with _plain_weights(module):
                reset()
            return


@contextmanager
def _plain_weights(module: nn.Module) -> Iterator[None]:
    """Inside: parametrized weights are plain ones. Afterwards: the originals that give them."""
    if not parametrize.is_parametrized(module):
        yield
        return
    kind = type(module)
    weights = {name: getattr(module, name).detach().clone() for name in module.parametrizations}  # type: ignore[union-attr]  # a ModuleDict
    module.__class__ = kind.__bases__[0]  # torch made `kind` from it, with a property a weight
    module._parameters.update(weights)
    yield
    for name in weights:
        weights[name] = module._parameters.pop(name)
    module.__class__ = kind
    for name, weight in weights.items():
        _assign(module, name, weight)


def _assign(module: nn.Module, name: str, weight: Tensor) -> None:
    try:
        setattr(module, name, weight)
    except RuntimeError as error:
        if "right_inverse" not in str(error):
            raise
        raise UnsupportedError(
            "init(key) needs a parametrization that can be inverted",
            f"{name} of {type(module).__name__}: {error}",
            "give it a right_inverse, or use init() without a key",
        ) from error


def _member_of(tensor: Tensor, key: Key) -> Tensor:
    """The tensor, as one of many where the key is one of many under vmap."""
    if not batch_levels(key):
        return tensor
    return torch.where(torch.zeros_like(key[0], dtype=torch.bool), tensor, tensor)


def _split(plan: Plan, leaves: Mapping[str, Tensor]) -> tuple[Leaves, Leaves]:
    copies = {name: tensor.detach().clone() for name, tensor in leaves.items()}
    params = {name: copies.pop(name) for name, p in plan.parameters.items() if p.requires_grad}
    return params, copies
