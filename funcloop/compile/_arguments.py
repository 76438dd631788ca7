"""Arguments of a jitted function that are named by position or by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from funcloop._errors import ArgumentError

Which = int | str | Sequence[int | str] | None


def chosen(f: Callable[..., Any], which: Which, option: str) -> frozenset[int | str]:
    """The positions and the names of the arguments that an option speaks of.

    An argument is found by both, however it is passed and however the option names it.

    Args:
        f: The function.
        which: Positions or names.
        option: The option's name, for the error.

    Raises:
        ArgumentError: the function has no such argument.
    """
    wanted = (which,) if isinstance(which, (int, str)) else tuple(which or ())
    if not wanted:
        return frozenset()
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # written in C
        return frozenset(wanted)
    kinds = inspect.Parameter
    positional = [p.name for p in parameters if p.kind <= kinds.POSITIONAL_OR_KEYWORD]
    by_name = [*positional, *[p.name for p in parameters if p.kind == kinds.KEYWORD_ONLY]]
    any_position = any(p.kind == kinds.VAR_POSITIONAL for p in parameters)
    any_name = any(p.kind == kinds.VAR_KEYWORD for p in parameters)
    found: set[int | str] = set(wanted)
    for argument in wanted:
        if isinstance(argument, int) and argument < len(positional):
            found.add(positional[argument])
        elif argument in positional:
            found.add(positional.index(str(argument)))
        elif not (any_position if isinstance(argument, int) else any_name or argument in by_name):
            raise ArgumentError(
                f"{option} names arguments of the function by position or by name",
                f"{argument!r}, where the arguments are {by_name}",
                "correct it",
            )
    return frozenset(found)
