"""A running torch.optim optimizer as a transform with its state, and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from funcloop import tree
from funcloop._errors import StructureError, UnsupportedError
from funcloop._pytree import close_node, open_node
from funcloop._types import OptState, Transform
from funcloop.optim._adadelta import adadelta
from funcloop.optim._adafactor import adafactor
from funcloop.optim._adagrad import adagrad
from funcloop.optim._adam import adam, adamw
from funcloop.optim._adamax import adamax
from funcloop.optim._asgd import asgd
from funcloop.optim._muon import muon
from funcloop.optim._nadam import nadam
from funcloop.optim._partition import partition
from funcloop.optim._radam import radam
from funcloop.optim._rmsprop import rmsprop
from funcloop.optim._rprop import rprop
from funcloop.optim._sgd import sgd

_BUILDERS: dict[str, Callable[..., Transform]] = {
    "Adadelta": adadelta,
    "Adafactor": adafactor,
    "Adagrad": adagrad,
    "Adam": adam,
    "AdamW": adamw,
    "Adamax": adamax,
    "ASGD": asgd,
    "Muon": muon,
    "NAdam": nadam,
    "RAdam": radam,
    "RMSprop": rmsprop,
    "Rprop": rprop,
    "SGD": sgd,
}
#: The names that torch.optim gives to what it keeps for each param; the states here use the same.
_KEPT = {
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg"),
    *("grad_avg", "acc_delta", "sum", "mu_product", "eta", "mu", "ax", "prev", "step_size"),
    *("row_var", "col_var"),
}
_WITHOUT_STEP = ("SGD", "Muon")
NamedParameters = Iterable[tuple[str, nn.Parameter]]


def from_torch(
    optimizer: torch.optim.Optimizer, named_parameters: NamedParameters | None = None
) -> tuple[Transform, OptState]:
    """The transform with the optimizer's hyperparameters, and its state, by parameter name.

    The optimizer is left alone; a run goes on where it stopped, with the params
    `{name: p.detach().clone()}`. Several param groups become a `partition` with the labels "0",
    "1", ... The learning rate is that of now: a torch scheduler does not come along.

    Args:
        optimizer: One of torch.optim's, but LBFGS and SparseAdam.
        named_parameters: `model.named_parameters()`. Not needed where the optimizer was made from
            named parameters.

    Raises:
        UnsupportedError: the optimizer is of another class, or its params are at different steps.
        StructureError: a param has no name.

    >>> weight = nn.Parameter(torch.tensor(1.0))
    >>> weight.grad = torch.tensor(2.0)
    >>> optimizer = torch.optim.Adam([("w", weight)], lr=0.1)
    >>> optimizer.step()
    >>> tx, state = from_torch(optimizer)
    >>> state[0].step, state[0].exp_avg
    (tensor(1), {'w': tensor(0.2000)})
    """
    builder = _builder(optimizer)
    named = _names(optimizer, named_parameters)
    accepted = inspect.signature(builder).parameters
    parts, labels = {}, {}
    for i, (group, names) in enumerate(zip(optimizer.param_groups, named, strict=True)):
        parts[str(i)] = builder(**{k: v for k, v in group.items() if k in accepted})
        labels.update(dict.fromkeys(names, str(i)))
    tx = parts["0"] if len(parts) == 1 else partition(parts, labels)
    params = {
        name: p
        for group, names in zip(optimizer.param_groups, named, strict=True)
        for name, p in zip(names, group["params"], strict=True)
    }
    saved = {name: dict(optimizer.state.get(p, {})) for name, p in params.items()}
    start = tx.init({name: p.detach() for name, p in params.items()})
    return tx, _filled(start, saved)


def to_torch(
    opt_state: OptState,
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters | None = None,
) -> dict[str, Any]:
    """What `optimizer.load_state_dict` takes, with the moments and step of `opt_state`.

    The optimizer is left alone and its hyperparameters stay; copy the params themselves with
    `model.load_state_dict`.

    Args:
        opt_state: State of the transform that corresponds to the optimizer; it may be part of a
            larger one.
        optimizer: One of torch.optim's.
        named_parameters: As for `from_torch`.

    Raises:
        UnsupportedError: the optimizer is of another class.
        StructureError: a param has no name.

    >>> weight = nn.Parameter(torch.tensor(1.0))
    >>> optimizer = torch.optim.Adam([("w", weight)])
    >>> state = adam().init({"w": torch.tensor(1.0)})
    >>> optimizer.load_state_dict(to_torch(state, optimizer))
    >>> optimizer.state[weight]["exp_avg"]
    tensor(0.)
    """
    _builder(optimizer)
    names = [name for group in _names(optimizer, named_parameters) for name in group]
    entries: dict[str, dict[str, Any]] = {name: {} for name in names}
    for node in _nodes(opt_state):
        fields = _fields(node)
        paths = {path for value in fields.values() for path in _by_path(value)}
        for name in paths & entries.keys():
            if type(optimizer).__name__ not in _WITHOUT_STEP:
                entries[name]["step"] = node.step.to(torch.get_default_dtype())
            for key, value in fields.items():
                _store(entries[name], key, _by_path(value).get(name, value))
    result = optimizer.state_dict()
    result["state"] = {i: entries[name] for i, name in enumerate(names) if entries[name]}
    return result


def _store(entry: dict[str, Any], key: str, value: Any) -> None:
    if key == "col_var" and value.ndim == 1:
        entry["variance"] = entry.pop("row_var")  # Adafactor of a vector is not factored
    else:
        entry[key] = value.detach().clone()


def _filled(node: Any, saved: Mapping[str, Mapping[str, Any]]) -> Any:
    """The state with everything that torch has saved for its params."""
    top = open_node(node)
    if top is None:
        return node
    if not hasattr(node, "_fields"):
        return close_node(top._replace(children=[_filled(child, saved) for child in top.children]))
    fields = _fields(node)
    paths = {path for value in fields.values() for path in _by_path(value)} or set(saved)
    mine = {name: saved[name] for name in paths}
    changes = {key: _restored(key, value, mine) for key, value in fields.items()}
    if hasattr(node, "step"):
        changes["step"] = torch.full_like(node.step, _common_step(mine))
    return node._replace(**changes)


def _restored(key: str, value: Any, saved: Mapping[str, Mapping[str, Any]]) -> Any:
    def leaf(name: str, old: Tensor) -> Tensor:
        entry = saved[name]
        new = entry.get(key, entry.get("variance") if key == "row_var" else None)
        return old if new is None else new.detach().to(old, copy=True)

    if isinstance(value, Tensor):  # one number for all params
        return leaf(next(iter(saved)), value) if saved else value
    return tree.map_with_path(leaf, value)


def _common_step(saved: Mapping[str, Mapping[str, Any]]) -> int:
    steps = {
        int(entry["step"]) if "step" in entry else int(entry.get("momentum_buffer") is not None)
        for entry in saved.values()
    }
    if len(steps) > 1:
        raise UnsupportedError(
            "all params of a transform are at the same step",
            f"the optimizer has params at the steps {sorted(steps)}",
            "give params that are not always trained a param group of their own",
        )
    return steps.pop() if steps else 0


def _nodes(state: Any) -> Iterator[Any]:
    """Every NamedTuple with a step in a state."""
    if hasattr(state, "_fields") and hasattr(state, "step"):
        yield state
    top = None if isinstance(state, Tensor) else open_node(state)
    for child in top.children if top else ():
        yield from _nodes(child)


def _fields(node: Any) -> dict[str, Any]:
    return {key: getattr(node, key) for key in node._fields if key in _KEPT}


def _by_path(value: Any) -> dict[str, Tensor]:
    return {} if isinstance(value, Tensor) else dict(tree.items(value))


def _builder(optimizer: torch.optim.Optimizer) -> Callable[..., Transform]:
    builder = _BUILDERS.get(type(optimizer).__name__)
    if builder is None or not isinstance(optimizer, getattr(torch.optim, type(optimizer).__name__)):
        raise UnsupportedError(
            "the optimizer has a transform of the same algorithm",
            type(optimizer).__name__,
            f"use one of {sorted(_BUILDERS)}; LBFGS needs a closure, SparseAdam sparse gradients",
        )
    return builder


def _names(
    optimizer: torch.optim.Optimizer, named_parameters: NamedParameters | None
) -> list[list[str]]:
    """The names of each group's params."""
    if named_parameters is None:
        names = [group.get("param_names") for group in optimizer.param_groups]
        missing = None in names
    else:
        known = {id(p): name for name, p in named_parameters}
        names = [[known.get(id(p)) for p in group["params"]] for group in optimizer.param_groups]
        missing = any(None in group for group in names)
    if missing:
        raise StructureError(
            "a state is keyed by parameter names",
            "an optimizer whose params have no names",
            "pass model.named_parameters(), or make the optimizer from them",
        )
    return names  # type: ignore[return-value]  # there is no None left
