"""One pure call: the leaves go in, the forward runs, the buffers come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from funcloop._compat import plain_modules
from funcloop._pytree import tree_map
from funcloop._types import Key
from funcloop.stateless._created import no_new_parameters
from funcloop.stateless._explain import explain
from funcloop.stateless._guard import Guard, NeedsCopy
from funcloop.stateless._plan import Plan
from funcloop.stateless._swap import Swapped

#: Buffers with more elements are copied only where the forward is known to write them.
_LARGE = 1 << 14


class Apply:
    """Calls the planned module; remembers what its forward writes, so that little is copied.

    The memory is of no consequence for results. A first call copies every buffer. A large buffer
    that no call has written is not copied again; should a later call be about to write it, or an
    argument, that call begins anew with a copy.
    """

    __slots__ = ("_constant", "_copied", "_plan")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._copied: set[str | None] = set()  # names of buffers; None for the arguments
        self._constant: frozenset[str] = frozenset()

    def __call__(
        self,
        values: Mapping[str, Tensor],
        flags: tuple[bool, ...],
        key: Key | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, dict[str, Tensor]]:
        """The output, and by name the buffers that the forward has changed."""
        while True:
            try:
                return self._call(values, flags, key, args, kwargs)
            except NeedsCopy as needed:  # nothing has been written yet, and from now on it is known
                self._copied.add(needed.name)

    def _call(
        self,
        values: Mapping[str, Tensor],
        flags: tuple[bool, ...],
        key: Key | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, dict[str, Tensor]]:
        plan, watched = self._plan, (args, kwargs)
        if None in self._copied:
            args, kwargs = tree_map(_copy, watched)
            watched = ()
        shared = self._constant - self._copied
        fresh = {n: values[n].clone() for n in plan.changeable(values) if n not in shared}
        guard = Guard(key, values, fresh, watched, plan)
        with Swapped(plan, {**values, **fresh}, flags) as module:
            try:
                with plain_modules(), no_new_parameters(), guard:
                    output = plan.net(*args, **kwargs)
            except Exception as error:
                refusal = explain(error, plan.module_names)
                if refusal is None:
                    raise
                raise refusal from error
            guard.settle()
            after = module.buffers_after(fresh, guard.written, guard.rebound)
        if not self._constant:
            self._constant = frozenset(
                name for name, b in fresh.items() if name not in after and b.numel() > _LARGE
            )
        return output, after


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
