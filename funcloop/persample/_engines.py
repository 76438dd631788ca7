"""Which engine runs, and in how many chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError, UnsupportedError
from funcloop._types import Batch, Buffers, Key, LossFn, Params
from funcloop.persample._engine import Engine, Units
from funcloop.persample._ghost import ghost
from funcloop.persample._loop import by_loop
from funcloop.persample._units import Call, count_units, unit_keys
from funcloop.persample._vmap import by_vmap

#: `auto`: rules where there are some, autograd example by example elsewhere. `ghost`: the same, but
#: a matrix without a rule is refused. `vmap`: no rules. `loop`: one example after the other.
EngineName: TypeAlias = Literal["auto", "ghost", "vmap", "loop"]


def _only_ghost(call: Call) -> Units:
    units = ghost(call)
    for (path, leaf), gradient in zip(tree.items(call.params), units.gradients, strict=True):
        if gradient.unexplained and leaf.ndim > 1:
            raise UnsupportedError(
                'engine="ghost" needs a rule for every use of a matrix',
                f"{path} {tuple(leaf.shape)} is used by {', '.join(gradient.unexplained)}",
                'use engine="auto", or give the function a rule (persample.register_rule)',
            )
    return units


_ENGINES: dict[str, Engine] = {
    "auto": ghost,
    "ghost": _only_ghost,
    "vmap": by_vmap,
    "loop": by_loop,
}


def engine_of(name: str) -> Engine:
    """The engine of this name.

    Raises:
        ArgumentError: there is none.
    """
    if name not in _ENGINES:
        raise ArgumentError("engine= names an engine", repr(name), f"use one of {list(_ENGINES)}")
    return _ENGINES[name]


def in_chunks(
    engine: Engine,
    loss_fn: LossFn,
    params: Params,
    buffers: Buffers,
    batch: Batch,
    key: Key | None,
    unit_axis: int | None = None,
    microbatch: int | None = None,
) -> Iterator[Units]:
    """The units of a batch, at most `microbatch` at a time; what they draw does not depend on it.

    An empty batch gives one unit of weight zero, made of zeros, so that no part is missing.

    Raises:
        ArgumentError: `microbatch` is not positive.
    """
    if microbatch is not None and microbatch < 1:
        raise ArgumentError("a microbatch has at least one unit", str(microbatch), "give a count")
    units, axis = count_units(batch, unit_axis), unit_axis or 0
    call = Call(loss_fn, params, buffers, batch, unit_keys(key, units or 1), unit_axis)
    if not units:
        yield _nothing(engine, call)
        return
    size = microbatch or units
    for start in range(0, units, size):
        length = min(size, units - start)
        if length < units:
            keys = None if call.keys is None else call.keys[start : start + length]
            part = tree.map(_narrow(axis, start, length), batch)
            yield engine(call._replace(batch=part, keys=keys))
        else:
            yield engine(call)


def _narrow(axis: int, start: int, length: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x.narrow(axis, start, length)


def _nothing(engine: Engine, call: Call) -> Units:
    axis = call.unit_axis or 0

    def zeros(x: Tensor) -> Tensor:
        shape = list(x.shape)
        shape[axis] = 1
        return x.new_zeros(shape)

    units = engine(call._replace(batch=tree.map(zeros, call.batch)))
    return units._replace(weight=torch.zeros_like(units.losses), buffers=call.buffers)
