"""Watches the torch functions of a forward: writes go to copies, some calls to an exact twin."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from funcloop._compat import storage_of
from funcloop._errors import HiddenStateError, UnsupportedError
from funcloop._pytree import flatten
from funcloop._types import Key
from funcloop.random import route
from funcloop.stateless._explain import module_of
from funcloop.stateless._plan import Plan
from funcloop.stateless._rules import RULES
from funcloop.stateless._writes import Function, into_out


class NeedsCopy(BaseException):  # no forward may catch it
    """The forward is about to write into a tensor from outside that may be copied beforehand.

    Attributes:
        name: The name of the buffer; None for an argument.
    """

    def __init__(self, name: str | None) -> None:
        super().__init__(name)
        self.name = name


class Owner(NamedTuple):
    """Whose memory it is: a "parameter", "buffer", "copy", "argument" or "constant"."""

    kind: str
    name: str


class Guard(route):
    """Sees every torch function of one forward before it runs.

    Random numbers come from the key, as under `route`. A write in place is noted for a copied
    buffer, and refused for anything else that came from outside; it is seen before it happens, also
    through views and under vmap. Functions in `RULES` are handled by their rule.
    """

    def __init__(
        self,
        key: Key | None,
        values: Mapping[str, Tensor],
        fresh: Mapping[str, Tensor],
        arguments: Any = (),
        plan: Plan | None = None,
    ) -> None:
        """Watch a forward.

        Args:
            key: Where its random numbers come from.
            values: Every leaf of the module, as it came from outside.
            fresh: Copies by name, which stand for some of the values and may be written.
            arguments: What the forward is called with.
            plan: The module's plan, for its constants and paths.
        """
        super().__init__(key)
        self.written: set[str] = set()
        self.rebound: set[str] = set()
        self._values, self._fresh, self._arguments, self._plan = values, fresh, arguments, plan
        self._names = {id(tensor): name for name, tensor in fresh.items()}
        self._owners: dict[int, Owner] | None = None
        self._versions = _versions(values, fresh)

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        rule = RULES[func]
        if rule is not None:
            return rule(self, func, *args, **kwargs or {})
        if kwargs:
            if kwargs.get("inplace"):
                self.note_write(args[0] if args else next(iter(kwargs.values())))
            if kwargs.get("out") is not None:
                return into_out(self, func, *args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    def proceed(self, func: Function, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function; random numbers come from the key."""
        return super().__torch_function__(func, (), args, kwargs)

    def note_write(self, target: Any) -> None:
        """Allow or refuse a write into `target` that is about to happen.

        Raises:
            NeedsCopy: the target belongs to an argument or an uncopied buffer.
            UnsupportedError: it belongs to a parameter.
            HiddenStateError: it belongs to a plain attribute.
        """
        if not isinstance(target, Tensor):
            return
        name = self._names.get(id(target))
        if name is not None:
            self.written.add(name)
            return
        if self._owners is None:
            self._owners = self._find_owners()
        owner = self._owners.get(storage_of(target))
        if owner is not None:
            self._judge(owner)

    def rebind(self, old: Tensor, new: Tensor) -> None:
        """Let the module hold `new` wherever it holds the parameter `old`, until the call ends."""
        for container, local, name in self._plan.parameter_slots if self._plan else ():
            if container[local] is old:
                container[local] = new
                self.rebound.add(name)

    def settle(self) -> None:
        """Count the writes that no torch function has shown: `set_`, and operators in C++.

        Raises:
            UnsupportedError: a parameter was written, which was seen too late to prevent it.
        """
        now = _versions(self._values, self._fresh)
        for name, version in now.items():
            if version != self._versions.get(name, version):
                if name not in self._fresh:
                    raise _refusal(Owner("leaf", name))
                self.written.add(name)

    def where(self) -> str:
        """The innermost module that is running, for a message."""
        names = self._plan.module_names if self._plan else {}
        frame = inspect.currentframe()
        while frame is not None:
            if module := module_of(frame, names):
                return module
            frame = frame.f_back
        return "the forward"

    def _find_owners(self) -> dict[int, Owner]:
        owners: dict[int, Owner] = {}
        for held in self._plan.constants if self._plan else ():
            owners[storage_of(held.value)] = Owner("constant", held.path + held.steps)  # type: ignore[arg-type]  # a tensor
        for leaf in flatten(self._arguments)[0]:
            if isinstance(leaf, Tensor):
                owners[storage_of(leaf)] = Owner("argument", "")
        for name, tensor in self._values.items():
            kind = "buffer" if self._plan and name not in self._plan.parameters else "parameter"
            owners[storage_of(tensor)] = Owner(kind, name)
        for name, tensor in self._fresh.items():
            owners[storage_of(tensor)] = Owner("copy", name)
        return owners

    def _judge(self, owner: Owner) -> None:
        if owner.kind == "copy":
            self.written.add(owner.name)
        elif owner.kind == "argument":
            raise NeedsCopy(None)
        elif owner.kind == "buffer":
            raise NeedsCopy(owner.name)
        elif owner.kind == "parameter":
            raise _refusal(owner)
        else:
            raise HiddenStateError(
                "a tensor that a forward writes is state, and state is a buffer",
                f"the forward writes into attribute {owner.name}",
                "register it with register_buffer; apply then takes and returns it",
            )


def _refusal(owner: Owner) -> UnsupportedError:
    return UnsupportedError(
        "apply returns no new params, and writes into none",
        f"the forward writes into {owner.kind} {owner.name}",
        "make it a buffer, or change it between the calls (a Transform)",
    )


def _versions(values: Mapping[str, Tensor], fresh: Mapping[str, Tensor]) -> dict[str, int]:
    """How often each tensor was written; under vmap torch does not count, nor in inference mode."""
    try:
        return {name: fresh.get(name, tensor)._version for name, tensor in values.items()}
    except RuntimeError:  # an inference tensor
        return {}
