"""The vmap engine: `vmap(grad(loss))`, the ghost engine without a rule."""

from __future__ import annotations

from funcloop.persample._engine import Units
from funcloop.persample._ghost import run
from funcloop.persample._units import Call


def by_vmap(call: Call) -> Units:
    """The units of a batch; every per-sample gradient is held."""
    return run(call, {})
