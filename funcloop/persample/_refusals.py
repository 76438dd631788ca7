"""What torch raises where vmap cannot run a loss function, said as rule, place and remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from funcloop._errors import FuncloopError, UnsupportedError
from funcloop.stateless import explain

_LOOP = 'engine="loop" takes the examples one after the other and runs any code'


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Around a vmapped forward and backward: torch's errors become an UnsupportedError."""
    try:
        yield
    except FuncloopError as error:
        if (
            isinstance(error, UnsupportedError)
            and "vmap" in error.rule
            and _LOOP not in error.remedy
        ):
            raise UnsupportedError(error.rule, error.value, f"{error.remedy}; {_LOOP}") from error
        raise
    except RuntimeError as error:
        reason = explain(error, {})
        if reason is None:
            raise
        raise UnsupportedError(reason.rule, reason.value, f"{reason.remedy}; {_LOOP}") from error
