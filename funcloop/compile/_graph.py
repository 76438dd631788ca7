"""What is done to a traced graph before it is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from funcloop.compile._old_values import COPY, old_values, root_of, stays_in_place

_CLONE = torch.ops.aten.clone.default
_STRIDED = torch.ops.aten.as_strided.default
#: Elements up to which a value is computed once, whatever reads it.
TINY = 16


def prepare(graph: GraphModule, donated: Sequence[tuple[int, int]]) -> list[int]:
    """Make the graph fit for a compiler, and let it overwrite what is donated.

    Args:
        graph: As traced; changed in place, and to be recompiled.
        donated: Pairs (input, output): the output is written into the input.

    Returns:
        The outputs that the graph still returns, by their former number.
    """
    _views_to_reshapes(graph.graph)
    if not writes_in_place(graph):
        _keep_scalars_apart(graph.graph)
    kept = _write_donated(graph.graph, donated)
    # Forward mode leaves comparisons behind that nobody reads and Inductor cannot lower.
    graph.graph.eliminate_dead_code()
    return kept


def writes_in_place(graph: GraphModule) -> bool:
    """Whether an operator writes into an intermediate; donated inputs are none."""
    return any(
        _is_mutable(node) and not (node.target is COPY and node.args[0].op == "placeholder")
        for node in graph.graph.nodes
    )


def _is_mutable(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _views_to_reshapes(graph: Graph) -> None:
    """Inductor may choose other strides than the traced ones, where a view does not exist."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default


def _keep_scalars_apart(graph: Graph) -> None:
    """Give tiny values that large loops read a memory of their own.

    Inductor (torch 2.13) otherwise computes them again for every element of every loop: the powers
    and roots of Adam's bias corrections make an update take 1.8 instead of 0.9 times a fused one.
    Only strides that are asked for make it stop.
    """
    for node in list(graph.nodes):
        inputs = node.all_input_nodes
        if node.op != "call_function" or not inputs or not all(map(is_tiny, [node, *inputs])):
            continue
        loops = [user for user in node.users if not is_tiny(user) and user.op == "call_function"]
        if loops:
            shape = list(node.meta["val"].shape), list(node.meta["val"].stride())
            with graph.inserting_after(node):
                apart = graph.call_function(_STRIDED, (node, *shape))
            apart.meta["val"] = node.meta["val"].as_strided(*shape)
            for user in loops:
                user.replace_input_with(node, apart)


def is_tiny(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return False
    return isinstance(value.numel(), int) and value.numel() <= TINY


def _write_donated(graph: Graph, donated: Sequence[tuple[int, int]]) -> list[int]:
    """Append `input.copy_(output)` for each pair, and drop these outputs.

    An output that is (a view or a copy of) a donated input is still returned, as a copy: the caller
    writes it when every input has been read. Two leaves that change places would otherwise become
    equal.
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output")
    results: list[Node] = list(output.args[0])  # type: ignore[arg-type]  # make_fx returns a list
    overwritten = {inputs[i] for i, _ in donated}
    unchanged = {o for i, o in donated if results[o] is inputs[i]}
    old = old_values(graph, overwritten)

    def may_be_written(i: int, o: int) -> bool:
        others = old.get(root_of(results[o]), set())
        return not others or (others == {inputs[i]} and stays_in_place(results[o], inputs[i]))

    written = {o for i, o in donated if o not in unchanged and may_be_written(i, o)}
    kept = [o for o in range(len(results)) if o not in unchanged | written]
    with graph.inserting_before(output):
        returned = [
            _call(graph, _CLONE, results[o]) if root_of(results[o]) in overwritten else results[o]
            for o in kept
        ]
        for i, o in donated:
            if o in written:
                _call(graph, COPY, inputs[i], results[o])
    output.args = (returned,)
    return kept


def _call(graph: Graph, operator: Any, *args: Node) -> Node:
    """A new node, with the fake value that compilers want to see at every node."""
    node = graph.call_function(operator, args)
    node.meta["val"] = operator(*[argument.meta["val"] for argument in args])
    return node
