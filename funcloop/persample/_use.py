"""What a rule says about one use of a parameter, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from funcloop.persample._factor import Factor


class Use(NamedTuple):
    """How the per-sample gradient of an argument follows from the output's.

    Attributes:
        saved: Tensors of the forward that the gradient needs.
        factor: `(grad, *saved) -> Factor`, called with a leading example dimension on each: `grad`
            is the gradient of the output, (B, *output.shape).
    """

    saved: tuple[Tensor, ...]
    factor: Callable[..., Factor]


#: Called with the arguments of a torch function; a Use for each argument that may be a parameter.
#: An argument that is left out is differentiated by autograd, example by example.
Rule: TypeAlias = Callable[..., Mapping[str, Use]]

_RULES: dict[Any, Rule] = {}


def register_rule(*functions: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Teach the ghost engine a torch function; a decorator for its rule.

    The rule has the function's own signature. It returns, by the name of the argument, how that
    argument's per-sample gradients follow from those of the output. It is asked only where such an
    argument is a parameter, or computed from parameters alone.

    Args:
        *functions: What the forward calls, as `torch.overrides` sees it: `torch.conv2d`,
            `torch.Tensor.matmul`.

    >>> import torch
    >>> @register_rule(torch.outer)
    ... def outer(input, vec2):
    ...     def factor(grad, input):  # (B, n, m), (B, n)
    ...         return Dense(torch.einsum("bnm,bn->bm", grad, input))
    ...     return {"vec2": Use((input,), factor)}
    >>> from funcloop.persample import Dense, Use, explain
    >>> def loss_fn(params, buffers, batch, key):
    ...     return torch.outer(batch[:, 0], params["w"]).sum(1)
    >>> print(explain(loss_fn, {"w": torch.ones(3)}, {}, torch.ones(2, 1)))
    w (3,): ghost, torch.outer: materialised, 3 numbers an example
    >>> _ = _RULES.pop(torch.outer)
    """

    def register(rule: Rule) -> Rule:
        for function in functions:
            _RULES[function] = rule
        return rule

    return register


def rules() -> Mapping[Any, Rule]:
    """Every rule by its torch function."""
    return _RULES
