"""Trees of tensors: taking apart, choosing leaves, arithmetic, norms, casts, replacing by path."""

from funcloop._pytree import PyTree, Structure, flatten, flatten_like, unflatten
from funcloop._pytree import tree_map as map
from funcloop.tree._arithmetic import (
    add,
    add_scaled,
    all_finite,
    lerp,
    mul,
    neg,
    ones_like,
    scale,
    sub,
    vdot,
    where,
    zeros_like,
)
from funcloop.tree._at import at
from funcloop.tree._cast import cast
from funcloop.tree._norm import norm
from funcloop.tree._partition import broadcast, combine, partition
from funcloop.tree._path import items, leaves, map_with_path, paths, size, structure
from funcloop.tree._stack import stack, unstack

__all__ = [
    "PyTree",
    "Structure",
    "add",
    "add_scaled",
    "all_finite",
    "at",
    "broadcast",
    "cast",
    "combine",
    "flatten",
    "flatten_like",
    "items",
    "leaves",
    "lerp",
    "map",
    "map_with_path",
    "mul",
    "neg",
    "norm",
    "ones_like",
    "partition",
    "paths",
    "scale",
    "size",
    "stack",
    "structure",
    "sub",
    "unflatten",
    "unstack",
    "vdot",
    "where",
    "zeros_like",
]
