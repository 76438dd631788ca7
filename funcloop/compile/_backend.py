"""From a flat graph to compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from funcloop._compat import (
    UnknownOption,
    compile_graph,
    compile_inductor,
    compiler_asked_by,
    inductor_operators,
    inductor_options,
    is_wrapper,
)
from funcloop._errors import ArgumentError
from funcloop.compile._cache import keep_compiled_code, remembered
from funcloop.compile._graph import writes_in_place

Backend = str | Callable[..., Any]
#: Takes the tensor leaves in a list, which it empties, and returns the outputs.
Code = Callable[[list[Tensor]], Sequence[Tensor]]


def decompositions(backend: Backend, leaves: Sequence[Any]) -> Mapping[Any, Callable[..., Any]]:
    """What a backend wants to have taken apart while tracing.

    Nothing where a leaf is a wrapper: what its operators are is its own to say.
    """
    if backend != "inductor" or any(isinstance(x, Tensor) and is_wrapper(x) for x in leaves):
        return {}
    return inductor_operators()


def compile_code(
    graph: GraphModule, fakes: Sequence[Tensor], backend: Backend, options: Mapping[str, Any]
) -> Code:
    """Compile a graph of plain operators.

    Args:
        graph: It may write into its inputs as its last act.
        fakes: The fake tensors that it was traced with.
        backend: A torch.compile backend.
        options: Settings of Inductor.

    Raises:
        ArgumentError: Inductor has no such setting, or the backend is another.
    """
    if backend != "inductor":
        if options:
            raise _unknown(sorted(options), f"backend={backend!r}")
        return compile_graph(graph, fakes, backend)
    keep_compiled_code()
    # Only AOTAutograd takes tensor subclasses apart, and makes writes new values: a write through a
    # view of an intermediate is silently lost in Inductor (torch 2.13).
    straight = bool(fakes) and not any(map(is_wrapper, fakes)) and not writes_in_place(graph)
    try:
        with inductor_options(options), compiler_asked_by(remembered):
            if straight:
                return compile_inductor(graph, fakes)
            return compile_graph(graph, fakes, backend)
    except UnknownOption as error:
        raise _unknown([error.name], "Inductor") from None


def _unknown(names: Sequence[str], what: str) -> ArgumentError:
    return ArgumentError(
        "options= are cudagraphs and the settings of torch._inductor.config",
        f"{', '.join(names)} for {what}",
        "remove them, or correct the names",
    )
