"""Different transforms for different leaves: partition by label, and masked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from funcloop import tree
from funcloop._errors import StructureError
from funcloop._pytree import PyTree, flatten, paths_of, unflatten
from funcloop._types import OptState, Params, Transform
from funcloop.optim._extra import with_extra
from funcloop.optim._labels import Labels, Mask, labels_of, mask_of
from funcloop.optim._leaves import ABSENT, align


def partition(transforms: Mapping[str, Transform], labels: Labels) -> Transform:
    """One transform for each label; each sees only its own leaves, as a dict by path.

    The state is a dict from label to that transform's state. Clipping by a global norm inside a
    part sees that part alone.

    Args:
        transforms: A transform for each label.
        labels: A tree of labels (a prefix of the params' tree is enough), a dict from path pattern
            to label in which the first match counts, or a function of the params that returns
            either.

    Raises:
        StructureError: at `init`, a leaf has no label or a label has no transform.

    >>> import torch
    >>> from funcloop.optim import freeze, sgd
    >>> tx = partition({"fast": sgd(1.0), "off": freeze()}, {"head.*": "fast", "*": "off"})
    >>> params = {"body.weight": torch.tensor(1.0), "head.weight": torch.tensor(1.0)}
    >>> tx.update(params, tx.init(params), params)[0]
    {'body.weight': None, 'head.weight': tensor(-1.)}
    """
    parts = {label: with_extra(tx) for label, tx in transforms.items()}

    def assign(params: Params) -> list[str]:
        assigned = labels_of(labels, params)
        for path, label in zip(tree.paths(params), assigned, strict=True):
            if label not in parts:
                raise StructureError(
                    "every label has a transform",
                    f"{path} has the label {label!r}",
                    f"use one of {list(parts)}, or add a transform for it",
                )
        return assigned

    return _routed(parts, assign)


def masked(inner: Transform, mask: Mask) -> Transform:
    """`inner` for the leaves of `mask`; the updates of the others pass unchanged.

    Args:
        inner: Any transform.
        mask: A tree of bools (a prefix is enough), a path pattern or a list of them, or a function
            of the params that returns either.

    >>> import torch
    >>> from funcloop.optim import add_decayed_weights
    >>> tx = masked(add_decayed_weights(0.1), lambda p: tree.map(lambda x: x.ndim > 0, p))
    >>> params = {"w": torch.ones(1), "b": torch.tensor(1.0)}
    >>> tx.update(tree.zeros_like(params), tx.init(params), params)[0]
    {'w': tensor([0.1000]), 'b': tensor(0.)}
    """
    parts = {"in": with_extra(inner)}

    def assign(params: Params) -> list[str]:
        return ["in" if chosen else "out" for chosen in mask_of(mask, params)]

    return _routed(parts, assign)


def _routed(parts: Mapping[str, Transform], assign: Callable[[Params], Sequence[str]]) -> Transform:
    """Each leaf through the part it is assigned to, or unchanged where there is none."""

    def init(params: Params, /) -> OptState:
        leaves, paths, places = _split(params, parts, assign)
        return {
            label: part.init({paths[i]: leaves[i] for i in places[label]})
            for label, part in parts.items()
        }

    def update(
        updates: PyTree, state: OptState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        leaves, paths, places = _split(params, parts, assign)
        (results, _), structure = align(updates, [params])
        results = [None if leaf is ABSENT else leaf for leaf in results]
        new_state = {}
        for label, part in parts.items():
            given = {paths[i]: results[i] for i in places[label]}
            mine = {paths[i]: leaves[i] for i in places[label]}
            changed, new_state[label] = part.update(given, state[label], mine, **extra)
            for i in places[label]:
                results[i] = changed[paths[i]]
        return unflatten(structure, results), new_state

    return Transform(init, update)


def _split(
    params: Params, parts: Mapping[str, Transform], assign: Callable[[Params], Sequence[str]]
) -> tuple[list[Any], list[str], dict[str, list[int]]]:
    """The leaves, their paths, and the places of each part's leaves among them."""
    leaves, structure = flatten(params)
    assigned = assign(params)
    places = {label: [i for i, own in enumerate(assigned) if own == label] for label in parts}
    return leaves, paths_of(structure), places
