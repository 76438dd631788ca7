"""Examples whose loss or gradient is not finite, refused by their index."""

from __future__ import annotations

from torch import Tensor

from funcloop._compat import transforming
from funcloop._errors import NonFiniteError, TraceError


def refuse_nonfinite(finite: Tensor) -> None:
    """Raises NonFiniteError for examples, (B,), that are not finite; TraceError in a trace."""
    if transforming():
        raise TraceError(
            'on_nonfinite="raise" looks at values',
            "a trace or a transform around it",
            'use "skip" or "propagate", and look at the metric `nonfinite`',
        )
    wrong = (~finite).nonzero()[:, 0].tolist()
    if wrong:
        raise NonFiniteError(
            "a gradient is finite",
            f"the loss or the gradient of example {', '.join(map(str, wrong))}",
            'look at the example, or drop it with on_nonfinite="skip"',
        )
