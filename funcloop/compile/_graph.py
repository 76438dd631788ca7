"""What is done to a traced graph before it is compiled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Graph, GraphModule, Node

_COPY = torch.ops.aten.copy_.default
_CLONE = torch.ops.aten.clone.default


def prepare(graph: GraphModule, donated: Sequence[tuple[int, int]]) -> list[int]:
    """Make the graph fit for a compiler, and let it overwrite what is donated.

    Args:
        graph: As traced; changed in place.
        donated: Pairs (input, output): the output is written into the input.

    Returns:
        The outputs that the graph still returns, by their former number.
    """
    _views_to_reshapes(graph.graph)
    kept = _write_donated(graph.graph, donated)
    # Forward mode leaves comparisons behind that nobody reads and Inductor cannot lower.
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return kept


def _views_to_reshapes(graph: Graph) -> None:
    """Inductor may choose other strides than the traced ones, where a view does not exist."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default


def _write_donated(graph: Graph, donated: Sequence[tuple[int, int]]) -> list[int]:
    """Append `input.copy_(output)` for each pair, and drop these outputs.

    An output that is (a view of) a donated input is still returned, as a copy: the caller writes it
    when every input has been read. Two leaves that change places would otherwise become equal, and
    Inductor removes a clone that only feeds a copy (torch 2.13).
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output")
    results: list[Node] = list(output.args[0])  # type: ignore[arg-type]  # make_fx returns a list
    overwritten = {inputs[i] for i, _ in donated}
    unchanged = {o for i, o in donated if results[o] is inputs[i]}
    written = {o for _, o in donated if _root(results[o]) not in overwritten}
    kept = [o for o in range(len(results)) if o not in unchanged | written]
    with graph.inserting_before(output):
        returned = [
            graph.call_function(_CLONE, (results[o],))
            if _root(results[o]) in overwritten
            else results[o]
            for o in kept
        ]
        for i, o in donated:
            if o in written:
                graph.call_function(_COPY, (inputs[i], results[o]))
    output.args = (returned,)
    return kept


def _root(node: Node) -> Node:
    """The node whose storage this one may share."""
    while node.op == "call_function" and _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns or not node.all_input_nodes:
        return False
    return schema.returns[0].alias_info is not None
