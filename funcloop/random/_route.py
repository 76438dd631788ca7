"""Takes the random calls of a block of code from a key.

torch offers every call of a public function to the innermost `TorchFunctionMode` first. The mode
here looks the function up: most are called through, the random ones have a rule that draws from the
key, and those without an exact rule are refused by name. No torch generator is touched, so vmap's
`randomness=` and the global seed have no say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from funcloop._compat import OPERATORS, runs_again
from funcloop._errors import RandomnessError
from funcloop._types import Key
from funcloop.random._key import fold_in
from funcloop.random._routing import Function, name_of
from funcloop.random._rules import RULES, operator_rule
from funcloop.random._stream import require_one_key

#: Keys are folded this many at a time: a Philox call costs the same for one and for sixteen.
_AHEAD = 16


class route(TorchFunctionMode):  # a context manager is called like a function
    """Inside this context every random call of torch is taken from `key`.

    Drawing call number `n` uses `fold_in(key, n)`, n = 0, 1, ... A call that draws nothing
    (`training=False`, `p=0`) passes and is not counted. The innermost route is the one that counts.
    Under vmap each member of a batch of keys has its own numbers; with one key for all members, the
    members' numbers are the same.

    What draws without a call of torch from Python is out of reach: compiled TorchScript, C++
    extensions, NumPy, `random`.

    Args:
        key: int64, shape (2,). None refuses every call that would draw.

    Raises:
        RandomnessError: inside, at a call that would draw without a key, that has no exact rule, or
            that is given an explicit generator.
        ShapeError: not one key.

    >>> import torch.nn.functional as F
    >>> from funcloop.random import dropout, fold_in, key
    >>> x = torch.ones(8)
    >>> with route(key(0)):
    ...     first, second = F.dropout(x), F.dropout(x)
    >>> torch.equal(second, dropout(fold_in(key(0), 1), x, 0.5))
    True
    >>> with route(None):
    ...     F.dropout(x)
    Traceback (most recent call last):
    funcloop._errors.RandomnessError: a random number comes from a key: torch.nn.functional.dropout
    would draw without one. Remedy: pass key=, or train=False where it should not draw.
    """

    def __init__(self, key: Key | None) -> None:
        super().__init__()
        if key is not None:
            require_one_key(key, "route")
        self._key = key
        self._taken = 0
        self._ahead: list[Key] = []

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        rule = RULES.get(func)
        if rule is None and type(func) in OPERATORS:
            rule = operator_rule(func)
        if rule is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return rule(self, func, *args, **kwargs or {})

    def again(self) -> route:
        """A route that goes on from here with the same keys, for what is repeated later."""
        repeated = route(self._key)
        repeated._taken, repeated._ahead = self._taken, list(self._ahead)
        return repeated

    def take(self, func: Function, device: torch.device) -> Key:
        """The key of the next call, on `device`."""
        if self._key is None:
            raise RandomnessError(
                "a random number comes from a key",
                f"{name_of(func)} would draw without one",
                "pass key=, or train=False where it should not draw",
            )
        if runs_again():
            raise RandomnessError(
                "a random call in a checkpointed block would differ when the block is called again",
                name_of(func),
                "call the module through stateless, which runs checkpointed blocks once",
            )
        if not self._ahead:
            calls = torch.arange(self._taken, self._taken + _AHEAD, device=self._key.device)
            self._ahead = list(fold_in(self._key, calls).unbind(0))[::-1]
            self._taken += _AHEAD
        return self._ahead.pop().to(device)

    def inside(self, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a Python function so that the calls in its body are routed too.

        torch's Python functions begin by handing themselves to the mode, whose calls are then not
        handed to it again. This calls the same code past that beginning.
        """
        assert isinstance(func, FunctionType), func
        body = FunctionType(
            func.__code__,
            {**func.__globals__, **_NOT_OVERRIDDEN},
            func.__name__,
            func.__defaults__,
            func.__closure__,
        )
        body.__kwdefaults__ = func.__kwdefaults__
        with self:
            return body(*args, **kwargs)


class _NotOverridden:
    """A module in which nothing counts as overridden: `torch`, or its `overrides`."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name in _CHECKS:
            return _never
        value = getattr(self._module, name)
        return _NotOverridden(value) if value is torch.overrides else value


def _never(*_: Any) -> bool:
    return False


_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_NOT_OVERRIDDEN = {**dict.fromkeys(_CHECKS, _never), "torch": _NotOverridden(torch)}
