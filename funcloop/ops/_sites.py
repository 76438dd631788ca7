"""One place where a quantized model rounds: its scale, its values, its refusals."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor

from funcloop._errors import StructureError, UnsupportedError
from funcloop.ops._lsq import lsq, lsq_init, lsq_plus
from funcloop.ops._spec import QuantSpec

Leaves = dict[str, Tensor]


def output_site(path: str) -> str:
    """The prefix of the scale of a layer's output."""
    return f"{path}.output"


def first_step(weight: Tensor, spec: QuantSpec, stacked: int) -> Tensor:
    """`lsq_init` below so many leading dimensions."""
    start = partial(lsq_init, spec=spec)
    for _ in range(stacked):
        start = torch.func.vmap(start)
    return start(weight)


def round_site(
    site: str, x: Tensor, leaves: Mapping[str, Tensor], spec: QuantSpec, count: int | None = None
) -> Tensor:
    """The rounded value, by the scale (and offset) among the leaves."""
    scale = leaves[f"{site}.scale"]
    if spec.symmetric:
        return lsq(x, scale, spec, count=count)
    return lsq_plus(x, scale, leaves[f"{site}.offset"], spec, count=count)


def floating_output(path: str, output: Any) -> Tensor:
    """The output of a layer, refused where it cannot be rounded."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        raise UnsupportedError(
            "the output of a quantized layer is a floating tensor",
            f"{path} returns {getattr(output, 'dtype', type(output).__name__)}",
            "choose the layers inside of it, or after it",
        )
    return output


def move(
    names: tuple[str, ...], source: Mapping[str, Tensor], target: Mapping[str, Tensor], pattern: str
) -> tuple[Leaves, Leaves]:
    """Both dicts, after what the pattern matches of the source has moved to the target."""
    movable = [name for name in source if name in names]
    chosen = [n for n in movable if fnmatchcase(n, pattern) or n.startswith(f"{pattern}.")]
    if not chosen:
        raise StructureError(
            "a pattern matches at least one parameter that can move",
            f"{pattern!r} matches none of {movable}",
            "correct the name; `*` crosses dots, and a module's path takes all below it",
        )
    kept = {name: x for name, x in source.items() if name not in chosen}
    return kept, {**target, **{name: source[name] for name in chosen}}
