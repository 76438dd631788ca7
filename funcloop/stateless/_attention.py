"""Scaled dot-product attention: its fused kernels know neither vmap nor higher derivatives."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from funcloop._compat import lacks_rules
from funcloop.stateless._writes import Function, Watcher


def attention(
    guard: Watcher,
    func: Function,
    /,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """`F.scaled_dot_product_attention`: by torch's formula in plain operators where it has to be.

    Under vmap the fused kernels would run member by member (torch says so in a warning), and the
    derivatives of their backward do not exist. The formula has rules for all of it.
    """
    if not lacks_rules((query, key, value)):
        return guard.proceed(func, query, key, value, *rest, **options)
    with sdpa_kernel(SDPBackend.MATH):
        return guard.proceed(func, query, key, value, *rest, **options)


def python_function(guard: Any, func: Function, /, *args: Any, **kwargs: Any) -> Any:
    """The rule of a Python function of torch in whose body the guard has to see every call."""
    return guard.inside(func, args, kwargs)
