"""One compiled graph, and how its flat results become the function's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._errors import TraceError
from funcloop._pytree import Structure, paths_of
from funcloop.compile._backend import Backend, Code, compile_code
from funcloop.compile._bias import split_biases
from funcloop.compile._cuda_graph import recorded
from funcloop.compile._dispatch import Dispatch
from funcloop.compile._donation import Donated, Lost, check_unaliased, fresh_alias, spend
from funcloop.compile._dynamic import Dynamic
from funcloop.compile._graph import prepare
from funcloop.compile._order import reports_after_updates
from funcloop.compile._pages import keep_freed_pages
from funcloop.compile._products import choose_products
from funcloop.compile._straight import Builder, builder
from funcloop.compile._trace import Traced


class CompiledGraph(NamedTuple):
    """What a jitted function keeps for one kind of arguments.

    Attributes:
        call: Takes the tensor leaves in a list, returns the outputs that are not donated.
        inputs: Places of the tensor leaves among all leaves.
        constants: Leaves of the result, None where a tensor goes.
        kept: Places in the result of what `call` returns.
        donated: Pairs (place among the leaves, place in the result).
        others: Places of the tensor leaves that are not donated.
        paths: The path of each donated leaf.
        captured: Tensors held as constants, each with the version that was traced.
        dynamic: The leading dimension that is a symbol of the graph, if one is.
        dispatch: Takes arguments of just this kind apart, quickly.
        build: Puts the result together.
    """

    call: Code
    inputs: list[int]
    constants: list[Any]
    kept: list[int]
    donated: list[tuple[int, int]]
    others: list[int]
    paths: list[str]
    captured: list[tuple[Tensor, int]]
    dynamic: Dynamic | None
    dispatch: Dispatch
    build: Builder

    def run(self, leaves: Sequence[Any]) -> Any:
        """The function's result for arguments of this kind; donated leaves are spent.

        Raises:
            TraceError: a captured tensor is no longer what it was.
            DonationError: a donated leaf shares its storage.
        """
        for tensor, version in self.captured:
            if tensor._version != version:
                _refuse_changed(tensor)
        donated = [leaves[i] for i, _ in self.donated]
        if donated:
            check_unaliased(donated, [leaves[i] for i in self.others], self.paths)
        result = list(self.constants)
        try:
            with torch.no_grad():
                outputs = self.call([leaves[i] for i in self.inputs])
                for place, output in zip(self.kept, outputs, strict=True):
                    result[place] = output
                for i, place in self.donated:
                    if result[place] is not None:  # it was not written inside the graph
                        leaves[i].copy_(result[place])
                    result[place] = fresh_alias(leaves[i])
        except BaseException:
            spend(donated, Lost)
            raise
        spend(donated, Donated)
        return self.build(result)


def compile_traced(
    traced: Traced,
    leaves: Sequence[Any],
    structure: Structure | str,
    donated: list[tuple[int, int]],
    backend: Backend,
    options: Mapping[str, Any],
    dynamic: Dynamic | None,
) -> CompiledGraph:
    """Compile a traced function.

    Args:
        traced: Its graph, which is changed in place.
        leaves: The leaves of the arguments that it was traced with.
        structure: Their structure.
        donated: Pairs (place among the leaves, place in the result).
        backend: A torch.compile backend.
        options: Settings of Inductor, and `cudagraphs`.
        dynamic: The leading dimension that is a symbol of the graph, if one is.
    """
    outputs = [o for o, constant in enumerate(traced.constants) if constant is None]
    flat_output = {place: number for number, place in enumerate(outputs)}
    flat_input = {place: number for number, place in enumerate(_tensor_places(leaves))}
    kept = prepare(traced.graph, [(flat_input[i], flat_output[o]) for i, o in donated])
    choose_products(traced.graph)
    split_biases(traced.graph)
    reports_after_updates(traced.graph)
    traced.graph.recompile()
    settings = dict(options)
    replay = settings.pop("cudagraphs", False)
    code = compile_code(traced.graph, traced.fakes, backend, settings)
    if replay:
        code = recorded(code, traced.fakes, frozenset(flat_input[i] for i, _ in donated))
    return assemble(
        code,
        leaves,
        structure,
        traced.output,
        traced.constants,
        [outputs[o] for o in kept],
        donated,
        traced.captured,
        dynamic,
    )


def assemble(
    call: Code,
    leaves: Sequence[Any],
    structure: Structure | str,
    result: Structure | str,
    constants: list[Any],
    kept: list[int],
    donated: list[tuple[int, int]],
    captured: Sequence[Tensor],
    dynamic: Dynamic | None = None,
) -> CompiledGraph:
    """What surrounds compiled code; `result` is the structure of what the function returns."""
    given = {i for i, _ in donated}
    paths = paths_of(structure)
    inputs = _tensor_places(leaves)
    if any(leaves[i].device.type == "cpu" for i in inputs):
        keep_freed_pages()
    return CompiledGraph(
        call=call,
        inputs=inputs,
        constants=constants,
        kept=kept,
        donated=donated,
        others=[i for i in inputs if i not in given],
        paths=[paths[i] for i, _ in donated],
        captured=[(tensor, tensor._version) for tensor in captured],
        dynamic=dynamic,
        dispatch=Dispatch(leaves, structure, dynamic),
        build=builder(result),
    )


def _tensor_places(leaves: Sequence[Any]) -> list[int]:
    return [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]


def _refuse_changed(tensor: Tensor) -> None:
    raise TraceError(
        "a tensor that a jitted function captures is a constant",
        f"a captured tensor of shape {tuple(tensor.shape)} was changed after tracing",
        "pass it as an argument",
    )
