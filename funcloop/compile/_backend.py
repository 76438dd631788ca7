"""From a flat graph to compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from funcloop._compat import compile_graph, compile_inductor, inductor_options, is_wrapper
from funcloop._errors import ArgumentError
from funcloop.compile._cache import keep_compiled_code

Backend = str | Callable[..., Any]
#: Takes the tensor leaves in a list, which it empties, and returns the outputs.
Code = Callable[[list[Tensor]], Sequence[Tensor]]


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
    try:
        with inductor_options(options):
            # Only AOTAutograd takes tensor subclasses apart.
            straight = bool(fakes) and not any(map(is_wrapper, fakes))
            return (
                compile_inductor(graph, fakes) if straight else compile_graph(graph, fakes, backend)
            )
    except KeyError as error:
        if error.args and error.args[0] in options:
            raise _unknown([error.args[0]], "Inductor") from None
        raise


def _unknown(names: Sequence[str], what: str) -> ArgumentError:
    return ArgumentError(
        "options= are cudagraphs and the settings of torch._inductor.config",
        f"{', '.join(names)} for {what}",
        "remove them, or correct the names",
    )
