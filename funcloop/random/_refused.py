"""Functions that draw and have no exact rule: refused by name where they would draw."""

from __future__ import annotations

from typing import Any

import torch

from funcloop._compat import argument_defaults
from funcloop.random._routing import Function, Route, Rule, refuse

#: Arguments that say how much is dropped, and whether at all.
_PROBABILITIES, _SWITCHES = ("dropout_p", "dropout", "p"), ("train", "training")


def refused(space: str, name: str) -> Rule:
    """The rule of an operator: refuse, unless its arguments say that it drops nothing."""

    def rule(route: Route, func: Function, *args: Any, **kwargs: Any) -> Any:
        given = argument_defaults(space, name)
        given.update(dict(zip(given, args, strict=False)), **kwargs)
        if _idle(given):
            return func(*args, **kwargs)
        route.take(func, torch.device("cpu"))  # without a key, that is what is to be said
        refuse(func, "has no keyed form", "draw from a key before the call and pass numbers in")

    return rule


def _idle(given: dict[str, Any]) -> bool:
    chances = [given[name] for name in _PROBABILITIES if given.get(name) is not None]
    switches = [given[name] for name in _SWITCHES if given.get(name) is not None]
    return any(isinstance(p, float | int) and p == 0 for p in chances) or False in switches


def recurrent(route: Route, func: Function, *args: Any, **kwargs: Any) -> Any:
    """A recurrent net, whose dropout between layers draws inside of C++."""
    # (input, hx, params, has_biases, ...) or (data, batch_sizes, hx, params, has_biases, ...)
    start = next((i for i, value in enumerate(args) if isinstance(value, bool)), len(args))
    names = ("has_biases", "num_layers", "dropout", "train")
    given = {**dict(zip(names, args[start:], strict=False)), **kwargs}
    if given["dropout"] > 0 and given["train"] and given["num_layers"] > 1:
        route.take(func, torch.device("cpu"))
        refuse(
            func,
            f"has dropout={given['dropout']} between its layers",
            "call it through stateless, which takes the layers apart, or set dropout=0",
        )
    return func(*args, **kwargs)


#: The functions of torch whose operators are tagged as drawing and that have no keyed form.
_NAMES = (
    "binomial",
    "poisson",
    "miopen_rnn",
    "rrelu_with_noise",
    "_standard_gamma",
    "_sample_dirichlet",
    "_fused_dropout",
    "_cudnn_rnn",
    "_lstm_mps",
    "_cudnn_init_dropout_state",
    "_fill_mem_eff_dropout_mask_",
    "_flash_attention_forward_no_dropout_inplace",
    "_triton_scaled_dot_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)

REFUSED: dict[Function, Rule] = {
    **{getattr(torch, name): refused("aten", name) for name in _NAMES if hasattr(torch, name)},
    torch.lstm: recurrent,
    torch.gru: recurrent,
    torch.rnn_tanh: recurrent,
    torch.rnn_relu: recurrent,
}
