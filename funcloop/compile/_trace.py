"""A function of pytrees traced once into one flat graph of plain operators."""

from __future__ import annotations

import linecache
import os
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from funcloop._compat import (
    MutatedInput,
    OperatorCalled,
    locate_operator,
    looks_at_values,
    trace_flat,
)
from funcloop._errors import FuncloopError, RandomnessError, TraceError
from funcloop._pytree import Structure, flatten, paths_of, unflatten

#: Held while tracing or compiling: fx's tracers change modules for all threads (torch 2.13).
ONE_AT_A_TIME = threading.RLock()
_NOT_USER_CODE = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))


class Traced(NamedTuple):
    """A flat graph and what surrounds it.

    Attributes:
        graph: Takes the tensor leaves of the arguments, returns the tensor leaves of the output.
        fakes: The fake tensors that it was traced with.
        output: Structure of the output.
        constants: The output's leaves, with None where the graph returns a tensor.
        fake_output: The output as traced, with fake tensors.
        captured: Tensors that the function took from elsewhere; the graph holds them as constants.
    """

    graph: GraphModule
    fakes: Sequence[Tensor]
    output: Structure | str
    constants: list[Any]
    fake_output: Any
    captured: list[Tensor]


def trace(
    f: Callable[..., Any],
    leaves: Sequence[Any],
    structure: Structure | str,
    dynamic: Sequence[int] = (),
    decompositions: Mapping[Any, Callable[..., Any]] = MappingProxyType({}),
) -> Traced:
    """Trace `f(*args, **kwargs)`, where `(args, kwargs)` has these leaves and this structure.

    The leading dimension of the leaves at the places `dynamic` is a symbol, and operators in the
    table are taken apart as it says.

    Raises:
        TraceError: the function looks at a value, writes into an argument, or captures a tensor
            that requires grad.
        RandomnessError: it draws from the global generator.
    """
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    returned: list[Any] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = unflatten(structure, filled)
        outputs, shape = flatten(f(*args, **kwargs))
        returned[:] = outputs, shape
        return [x for x in outputs if isinstance(x, Tensor)]

    try:
        symbolic = [places.index(i) for i in dynamic]
        graph, fakes = trace_flat(flat, [leaves[i] for i in places], symbolic, decompositions)
    except MutatedInput as error:
        path = paths_of(structure)[places[error.place]]
        raise TraceError(
            "a pure function leaves its arguments as they are",
            f"argument {path} is changed in place",
            "use the out-of-place operation",
        ) from None
    except FuncloopError:
        raise
    except Exception as error:
        if looks_at_values(error):
            raise _value_error(error) from error
        raise
    outputs, shape = returned
    captured = _captured(graph)
    _refuse_random(graph, flat, fakes)
    constants = [None if isinstance(x, Tensor) else x for x in outputs]
    return Traced(graph, fakes, shape, constants, unflatten(shape, outputs), captured)


def _value_error(error: Exception) -> TraceError:
    return TraceError(
        "a traced function cannot look at the values of its tensors",
        _user_line(error),
        "use torch.where or torch.cond, keep .item() and prints outside, pass what decides a shape "
        "as a static argument, or run without jit",
    )


def _user_line(error: Exception) -> str:
    """The innermost line of the traceback that is neither torch's nor funcloop's."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not f.filename.startswith(_NOT_USER_CODE)]
    if not users:
        return "a line that cannot be named"
    line = linecache.getline(users[-1].filename, users[-1].lineno or 0).strip()
    return f"`{line}` at {users[-1].filename}:{users[-1].lineno}"


def _captured(graph: GraphModule) -> list[Tensor]:
    tensors = [_attribute(graph, n) for n in graph.graph.nodes if n.op == "get_attr"]
    captured = [t for t in tensors if isinstance(t, Tensor)]
    for tensor in captured:
        if tensor.requires_grad:
            raise TraceError(
                "a tensor that a jitted function captures is a constant",
                f"a captured parameter of shape {tuple(tensor.shape)} that requires grad",
                "pass it as an argument: stateless(net) makes params an argument",
            )
    return captured


def _attribute(graph: GraphModule, node: Node) -> Any:
    value: Any = graph
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _refuse_random(graph: GraphModule, flat: Callable[..., Any], fakes: Sequence[Tensor]) -> None:
    drawing = [n for n in graph.graph.nodes if _draws(n.target, n.args, n.kwargs)]
    if not drawing:
        return
    name, line = str(drawing[0].target), "a line that cannot be named"
    try:
        locate_operator(flat, fakes, _draws)
    except OperatorCalled as error:
        name, line = error.operator, _user_line(error)
    raise RandomnessError(
        "a jitted function takes its random numbers from a key",
        f"{name} in {line}",
        "use funcloop.random, or model.apply(..., key=key)",
    )


def _draws(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call draws random numbers; fused attention with a dropout of zero does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return False
    values = {argument.name: argument.default_value for argument in operator._schema.arguments}
    values.update(zip(values, args, strict=False))
    values.update(kwargs)
    return (
        values.get("dropout_p") != 0 and values.get("train", True) and values.get("training", True)
    )
