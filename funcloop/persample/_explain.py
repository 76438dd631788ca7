"""Says for each parameter how its per-sample gradient is found, and why."""

from __future__ import annotations

from typing import NamedTuple

from funcloop import random, tree
from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.persample._engines import engine_of, in_chunks


class Line(NamedTuple):
    """One parameter.

    Attributes:
        path: Its path.
        shape: Its shape.
        engine: `ghost`, or `autograd` where some use has no rule.
        functions: What uses it: by a rule, or without one.
        how: How the norm is computed.
    """

    path: str
    shape: tuple[int, ...]
    engine: str
    functions: tuple[str, ...]
    how: str

    def __str__(self) -> str:
        names = ", ".join(_short(name) for name in self.functions)
        why = f", {names}" if names else ""
        if self.engine == "autograd":
            why = f", no rule for {names}" if names else ", no rule"
        return f"{self.path} {self.shape}: {self.engine}{why}: {self.how}"


class Explanation(NamedTuple):
    """What `explain` returns; printed, one line for each parameter."""

    lines: tuple[Line, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))


def explain(
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    key: Key | None = None,
    *,
    unit_axis: int | None = None,
) -> Explanation:
    """How `engine="auto"` finds the per-sample gradient of each parameter.

    `ghost` is a rule: the norm comes from the layer's input and output gradient, in the way with
    the fewest counted operations and bytes. `autograd` is a use without a rule; there the gradients
    of all examples are held, which is right for every code, and cheap for biases and scales.

    >>> import torch, torch.nn.functional as F
    >>> def loss_fn(params, buffers, batch, key):
    ...     return (F.linear(batch, params["w"]) * params["scale"]).sum(1)
    >>> params = {"w": torch.ones(3, 2), "scale": torch.ones(3)}
    >>> print(explain(loss_fn, params, {}, torch.ones(4, 2)))
    w (3, 2): ghost, F.linear: product of the norms of input and output gradient
    scale (3,): autograd, no rule for Tensor.mul: materialised, 3 numbers an example
    """
    key = random.key(0) if key is None else key
    engine = engine_of("auto")
    units = next(in_chunks(engine, loss_fn, params, buffers, batch, key, unit_axis))
    lines = []
    for (path, leaf), gradient in zip(tree.items(params), units.gradients, strict=True):
        name = "autograd" if gradient.unexplained else "ghost"
        functions = gradient.unexplained or gradient.functions
        lines.append(Line(path, tuple(leaf.shape), name, tuple(functions), gradient.describe()))
    return Explanation(tuple(lines))


def _short(name: str) -> str:
    return name.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "Tensor.")
