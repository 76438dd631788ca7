"""How torch takes the containers apart that users and libraries register with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch.utils._pytree as torch_pytree


class NodeRule(NamedTuple):
    """How torch takes a registered container type apart and puts it together."""

    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten: Callable[[Iterable[Any], Any], Any]


def registered_node(kind: type) -> NodeRule | None:
    """The rule that torch's pytree registry holds for `kind`, or None for a leaf.

    Why private: users and libraries register their containers with torch (Hugging Face outputs,
    dataclasses), and torch has no public look-up.
    """
    node = torch_pytree.SUPPORTED_NODES.get(kind)
    return None if node is None else NodeRule(node.flatten_fn, node.unflatten_fn)
