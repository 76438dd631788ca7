"""State that a swap of parameters and buffers cannot reach, found by one look at the attributes."""

from __future__ import annotations

import dis
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from funcloop._compat import storage_of
from funcloop._errors import HiddenStateError, UnsupportedError
from funcloop.stateless._pattern import Pattern, as_patterns, matches

#: Attributes that every module has, and torch's own copies of parameters, known to a Plan.
_OF_MODULE = frozenset(vars(nn.Module()))
_INTERNAL = _OF_MODULE | {"_flat_weights", "_flat_weight_refs"}
_CONTAINERS = (list, tuple, set, frozenset, deque)
_SCALARS = (int, float, str, bool, type(None), bytes)
#: Containers with more entries were filled by a constructor, and take long to copy.
_SMALL = 64
#: How far into containers and closures the look goes, and how much of that an object costs.
_DEPTH, _OBJECT = 5, 3


class Held(NamedTuple):
    """A tensor or module that a module holds outside of parameters, buffers and children.

    Attributes:
        path: The attribute that leads to it, as `block.cache`.
        steps: How it goes on from there, as `[0]`.
        value: What was found.
    """

    path: str
    steps: str
    value: Tensor | nn.Module


class Hidden(NamedTuple):
    """What the attributes hold that is no reason to refuse the module.

    Attributes:
        constants: Plain tensors, which a forward may read and must not write.
        stateless: Modules without tensors in plain containers; they still have a mode.
    """

    constants: tuple[Held, ...]
    stateless: tuple[tuple[str, nn.Module], ...]


def scan(
    found: list[tuple[str, nn.Module]], leaves: Mapping[str, Tensor], computed: Set[tuple[int, str]]
) -> tuple[list[Held], Hidden]:
    """Hidden state, and what may stay.

    Args:
        found: Every registered module with its path.
        leaves: Every registered parameter and buffer by name.
        computed: Attributes, by `(id(vars(module)), name)`, that a hook computes at each call.
    """
    known = {id(module) for _, module in found} | {id(tensor) for tensor in leaves.values()}
    harmful: list[Held] = []
    constants: list[Held] = []
    stateless: list[tuple[str, nn.Module]] = []
    visited: set[int] = set()
    for held in _held(found, known, computed, visited):
        value = held.value
        if isinstance(value, Tensor):
            live = value.requires_grad or isinstance(value, nn.Parameter) or id(value) in known
            (harmful if live else constants).append(held)
        elif any(True for _ in (*value.parameters(), *value.buffers())):
            harmful.append(held)
        else:
            stateless += [(held.path + held.steps, module) for module in value.modules()]
    return harmful, Hidden(tuple(constants), tuple(stateless))


def refuse_hidden(harmful: list[Held], allowed: Pattern) -> None:
    """Raises HiddenStateError for what no pattern of `allow_hidden` takes."""
    patterns = as_patterns(allowed)
    left = [h for h in harmful if not any(matches(h.path, p) for p in patterns)]
    if left:
        raise HiddenStateError(
            "a pure function sees only registered parameters, buffers and modules",
            f"{', '.join(h.path + h.steps for h in left)} is not registered",
            "use nn.ParameterList, nn.ModuleList or register_buffer, "
            "or name it in allow_hidden= to keep it as a constant",
        )


def _held(
    found: list[tuple[str, nn.Module]],
    known: set[int],
    computed: Set[tuple[int, str]],
    visited: set[int],
) -> Iterator[Held]:
    for path, module in found:
        prefix = f"{path}." if path else ""
        for name, value in vars(module).items():
            if name not in _INTERNAL and (id(vars(module)), name) not in computed:
                yield from _look(value, Held(prefix + name, "", module), known, visited, _DEPTH)
        for kind in type(module).__mro__:
            if not kind.__module__.startswith("torch.") and issubclass(kind, nn.Module):
                for name, value in _class_attributes(kind):
                    yield from _look(value, Held(prefix + name, "", module), known, visited, _DEPTH)


def _class_attributes(kind: type) -> Iterator[tuple[str, Any]]:
    """Values that a class holds, and of its functions those that `forward` reaches."""
    functions = {n: f for n, f in vars(kind).items() if isinstance(f, types.FunctionType)}
    yield from ((n, v) for n, v in vars(kind).items() if n not in functions and n[:2] != "__")
    waiting = ["forward"]
    while waiting:
        function = functions.pop(waiting.pop(), None)
        if function is not None:
            yield function.__name__, function
            waiting += function.__code__.co_names


def _look(value: Any, at: Held, known: set[int], visited: set[int], depth: int) -> Iterator[Held]:
    """Every tensor and every unregistered module that can be reached from `value`."""
    if isinstance(value, Tensor):
        yield at._replace(value=value)
    elif isinstance(value, nn.Module):
        if id(value) not in known:
            yield at._replace(value=value)
    elif depth and id(value) not in visited:
        cost = _OBJECT if _is_plain_object(value) else 1
        if cost <= depth:
            visited.add(id(value))
            for step, item in _inside(value):
                if not isinstance(item, _SCALARS):
                    next_at = at._replace(steps=at.steps + step)
                    yield from _look(item, next_at, known, visited, depth - cost)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What a container, a function or a plain object holds, each with its step of the path."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in list(value.items()))
    elif isinstance(value, _CONTAINERS):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((".partial", item) for item in (value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("", item) for item in (value.__self__, value.__func__))
    elif isinstance(value, (staticmethod, classmethod)):
        yield "", value.__func__
    elif isinstance(value, property):
        yield "", value.fget
    elif isinstance(value, types.FunctionType):
        yield from _inside_function(value)
    elif _is_plain_object(value):
        yield from ((f".{name}", item) for name, item in list(vars(value).items()))


def _inside_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if (function.__module__ or "").startswith("torch."):
        return
    yield "()", function.__defaults__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"() closure {name}", cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            continue
    for step in dis.get_instructions(function):
        if step.opname == "LOAD_GLOBAL":
            value = function.__globals__.get(step.argval)
            if isinstance(value, (Tensor, nn.Module, *_CONTAINERS, dict)):
                yield f"() global {step.argval}", value


def _is_plain_object(value: Any) -> bool:
    kind = type(value)
    foreign = kind.__module__.split(".")[0] in ("builtins", "torch", "numpy", "funcloop")
    ours = not isinstance(value, (type, types.ModuleType, types.FunctionType, Mapping))
    return ours and not foreign and hasattr(value, "__dict__")


def refuse_lazy(tensor: Tensor, name: str) -> None:
    """Raises HiddenStateError for a parameter or buffer that has no shape yet."""
    if is_lazy(tensor):
        raise HiddenStateError(
            "a lazy module has no parameters before its first call",
            f"{name} is uninitialised",
            "pass one dummy batch through the module first",
        )


def mutable_attributes(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """Lists, dicts and sets among the attributes that a forward might fill: no large tables."""
    kinds = (list, dict, set, deque, OrderedDict, defaultdict)
    for module in modules:
        for name, value in vars(module).items():
            if name not in _OF_MODULE and type(value) in kinds and len(value) <= _SMALL:
                yield value


def refuse_shared_memory(leaves: Mapping[str, Tensor]) -> None:
    """Raises HiddenStateError where two leaves overlap in memory without being one tensor."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in leaves.items():
        if tensor.layout == torch.strided and tensor.numel():
            start = int(tensor.storage_offset())
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            end = start + sum(int((size - 1) * stride) for size, stride in steps)
            spans.setdefault(storage_of(tensor), []).append((start, end, name))
    for group in spans.values():
        group.sort()
        for (_, end, first), (start, _, second) in pairwise(group):
            if start <= end:
                raise HiddenStateError(
                    "leaves that share memory are one tensor, or change each other unseen",
                    f"{first} and {second} overlap",
                    "assign the same nn.Parameter to both places, or clone one of them",
                )


def refuse_backward_hooks(
    found: list[tuple[str, nn.Module]], parameters: Mapping[str, nn.Parameter]
) -> None:
    """Raises UnsupportedError for hooks of backward, which a functional gradient never runs."""
    hooked = [path for path, m in found if m._backward_hooks or m._backward_pre_hooks]
    for name, p in parameters.items():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            hooked.append(name)
    if hooked:
        raise UnsupportedError(
            "the gradient of a pure function runs no backward hooks of a module",
            f"{hooked} have some",
            "remove them, and work on the gradients that the estimator returns",
        )
