"""Which nodes of a graph may be what a donated input held before it is overwritten.

They are its views, and its copies too: Inductor leaves out a copy that changes nothing, and reads
the input itself, by then perhaps a new one (`remove_noop_ops`, torch 2.13; so does torch.compile).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

COPY = torch.ops.aten.copy_.default
_ATEN, _PRIMS = torch.ops.aten, torch.ops.prims
#: Views whose schemas do not say so.
_VIEWS = {
    *[_ATEN._unsafe_view, _ATEN.unsafe_chunk],
    *[_ATEN.unsafe_split, _ATEN.unsafe_split_with_sizes],
}
#: What changes nothing for some arguments: Inductor's `noop_registry`.
_COPIES = {
    *[_ATEN.clone, _ATEN._to_copy, _ATEN.copy, _PRIMS.convert_element_type, _PRIMS.device_put],
    *[_ATEN.cat, _ATEN.repeat, _ATEN.constant_pad_nd, _ATEN.slice_scatter],
    *[_ATEN.pow, _ATEN.ceil, _ATEN.floor, _ATEN.round, _ATEN.trunc],
}


def old_values(graph: Graph, inputs: Iterable[Node]) -> Mapping[Node, set[Node]]:
    """The nodes that may be views or copies of these inputs, and of which of them.

    A storage that is written to is known by the node that `root_of` names.
    """
    old = {node: {node} for node in inputs}
    for node in graph.nodes:
        origins = set[Node]().union(*[old.get(operand, ()) for operand in _same(node)])
        for place in (node, root_of(node)) if origins else ():
            old[place] = old.get(place, set()) | origins
    return old


def stays_in_place(node: Node, other: Node) -> bool:
    """Whether it is the other one or a copy, its entries in their places, perhaps changed."""
    while node is not other:
        if not _is_copy(node) and not _in_place(node):
            return False
        node = node.all_input_nodes[0]
    return True


def root_of(node: Node) -> Node:
    """The node whose storage this one may share."""
    while _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _same(node: Node) -> Sequence[Node]:
    """The operands that a node may be equal to, or share its storage with."""
    if _is_copy(node) or node.target is COPY:
        return node.all_input_nodes
    return node.all_input_nodes[:1] if _is_view(node) else []


def _is_copy(node: Node) -> bool:
    return getattr(node.target, "overloadpacket", None) in _COPIES


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem or getattr(node.target, "overloadpacket", None) in _VIEWS:
        return True
    return bool(node.all_input_nodes) and _alias(node) is not None


def _in_place(node: Node) -> bool:
    alias = _alias(node)
    moves = torch.Tag.inplace_view in getattr(node.target, "tags", ())
    return alias is not None and alias.is_write and not moves


def _alias(node: Node) -> Any:
    """What the schema of an operator says of the storage of its first result."""
    schema = getattr(node.target, "_schema", None)
    return schema.returns[0].alias_info if schema is not None and schema.returns else None
