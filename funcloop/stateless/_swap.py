"""Puts given tensors into a module for one call, and everything back afterwards."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Set
from functools import partial

from torch import Tensor, nn

from funcloop._compat import transforming
from funcloop._errors import HiddenStateError, UnsupportedError
from funcloop.stateless._normalization import cumulative_norm
from funcloop.stateless._plan import Plan

_locks: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()


class Swapped:
    """Inside: the module holds `values` and runs in the given modes. Afterwards: as it was.

    What is put back is every entry of every module's dicts: parameters, buffers, children, mode and
    plain attributes, the identical objects in their order, also when the call raises; and what the
    lists, dicts and sets among the attributes hold. Calls of one module from several threads wait
    for each other; a thread may nest them.
    """

    __slots__ = ("_contents", "_flags", "_lock", "_plan", "_saved", "_values")

    def __init__(self, plan: Plan, values: Mapping[str, Tensor], flags: tuple[bool, ...]) -> None:
        self._plan, self._values, self._flags = plan, values, flags
        self._lock = _locks.setdefault(plan.net, threading.RLock())

    def __enter__(self) -> Swapped:
        self._lock.acquire()
        self._saved = [d.copy() for d in self._plan.dicts]
        self._contents = [c.copy() for c in self._plan.containers]
        try:
            self._plan.check_unchanged()
            self._swap(self._plan, self._values)
        except BaseException:
            self._restore()
            raise
        return self

    def _swap(self, plan: Plan, values: Mapping[str, Tensor]) -> None:
        for container, local, name in plan.parameter_slots:
            container[local] = values[name]
        for container, local, name in plan.buffer_slots:
            container[local] = values[name]
        for container, local, name in plan.empty_slots:
            container[local] = values.get(name)
        for container, local, _, inner in plan.wrapped:
            container[local] = inner
        for attributes, parameters, names in plan.recurrent:
            attributes["_flat_weights"] = [parameters[name] for name in names]
            # torch compares these with the parameters, and would pack the given ones on CUDA
            attributes["_flat_weight_refs"] = [None] * len(names)
        for attributes in plan.compiled:
            attributes["_compiled_call_impl"] = None
        for norm in plan.cumulative if transforming() else ():
            vars(norm)["forward"] = partial(cumulative_norm, norm)
        for attributes, flag in zip(plan.attributes, self._flags, strict=True):
            attributes["training"] = flag

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for container, saved in zip(self._plan.dicts, self._saved, strict=True):
            container.clear()
            container.update(saved)
        for container in self._plan.empty_dicts:
            if container:
                container.clear()
        for container, saved in zip(self._plan.containers, self._contents, strict=True):
            container.clear()
            (container.extend if hasattr(container, "extend") else container.update)(saved)
        self._lock.release()

    def buffers_after(
        self, fresh: Mapping[str, Tensor], written: Set[str], rebound: Set[str]
    ) -> dict[str, Tensor]:
        """What the call made of the buffers, by name; those it left alone are not among them.

        Args:
            fresh: The copies that were put in.
            written: Names of those that were written in place.
            rebound: Parameters that a rule has replaced for the rest of the call.

        Raises:
            UnsupportedError: a parameter was replaced, a buffer was deleted, or a tie was cut.
            HiddenStateError: a plain attribute that holds a tensor was replaced.
            StructureError: the call has added children, parameters or buffers.
        """
        plan = self._plan
        for container, local, wrapper, _ in plan.wrapped:
            container[local] = wrapper
        plan.check_unchanged()
        for container, local, name in plan.parameter_slots:
            if container[local] is not self._values[name] and name not in rebound:
                _refuse_replaced_parameter(name)
        for place, name in plan.tensor_attributes:
            if plan.dicts[place].get(name) is not self._saved[place][name]:
                _refuse_replaced_attribute(name)
        after: dict[str, Tensor] = {}
        for container, local, name in plan.buffer_slots:
            now = container[local]
            if now is None or after.setdefault(name, now) is not now:
                _refuse_lost_buffer(name, now)
        for container, local, name in plan.empty_slots:
            if (now := container[local]) is not None:
                after[name] = now
        return {
            name: now
            for name, now in after.items()
            if now is not fresh.get(name) or name in written
        }


def _refuse_replaced_parameter(name: str) -> None:
    raise UnsupportedError(
        "apply returns no new params",
        f"the forward replaces parameter {name}",
        "make it a buffer, or change it between the calls",
    )


def _refuse_replaced_attribute(name: str) -> None:
    raise HiddenStateError(
        "a tensor that a forward replaces is state, and state is a buffer",
        f"the forward assigns attribute {name}",
        "register it with register_buffer; apply then takes and returns it",
    )


def _refuse_lost_buffer(name: str, now: Tensor | None) -> None:
    raise UnsupportedError(
        "a buffer stays one tensor under one name",
        f"the forward {'removes' if now is None else 'cuts the tie of'} buffer {name}",
        "assign a tensor to every place that shares it",
    )
