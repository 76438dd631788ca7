"""FuncloopError and its kinds: each names the rule, the offending value and the remedy."""

from __future__ import annotations

import importlib
from types import ModuleType


class FuncloopError(Exception):
    """What cannot be computed exactly is refused with one of these.

    Args:
        rule: The rule that was broken, as a short clause.
        value: The offending value: a path, a shape, a dtype, a line of the user's code.
        remedy: What to write instead.

    >>> raise ShapeError("a loss is a vector", "shape ()", "return shape (B,)")
    Traceback (most recent call last):
    funcloop._errors.ShapeError: a loss is a vector: shape (). Remedy: return shape (B,).
    """

    def __init__(self, rule: str, value: str, remedy: str) -> None:
        super().__init__(f"{rule}: {value}. Remedy: {remedy}.")
        self.rule = rule
        self.value = value
        self.remedy = remedy

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        # Exception's own reduction replays `args`, which holds the joined message.
        return type(self), (self.rule, self.value, self.remedy)


class ShapeError(FuncloopError, ValueError):
    """A tensor has a shape or dtype that its role does not allow."""


class StructureError(FuncloopError, ValueError):
    """Two trees that have to match do not, or a tree lacks what is asked of it."""


class ArgumentError(FuncloopError, ValueError):
    """A hyperparameter or option lies outside its range."""


class RandomnessError(FuncloopError, RuntimeError):
    """A random number was asked for without a key."""


class HiddenStateError(FuncloopError, RuntimeError):
    """A module holds state that a pure function cannot see."""


class NonFiniteError(FuncloopError, ArithmeticError):
    """A loss or a gradient is infinite or NaN where that was not to be."""


class UnsupportedError(FuncloopError, NotImplementedError):
    """A module, operator or transform that cannot be made pure or exact."""


class TraceError(FuncloopError, RuntimeError):
    """A function cannot be traced into one graph."""


class CompileError(FuncloopError, RuntimeError):
    """A compiled function gives another result than the plain one."""


class ConvergenceError(FuncloopError, ArithmeticError):
    """An iteration ended before it reached what it was asked for."""


class DonationError(FuncloopError, RuntimeError):
    """A donated tensor was used again, or cannot be donated."""


class CheckpointError(FuncloopError, ValueError):
    """A file is no checkpoint, or cannot hold what it is to hold."""


class MissingExtraError(FuncloopError, ImportError):
    """An optional dependency is not installed."""


def import_extra(module: str, extra: str) -> ModuleType:
    """An optional dependency, imported when it is first needed.

    >>> import_extra("json", "loop").__name__
    'json'

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "an optional dependency has to be installed",
            f"{module} is missing",
            f"pip install funcloop[{extra}]",
        ) from error
