"""Which function has which rule. Whatever is not found here draws nothing."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from funcloop._compat import is_seeded, operator_name
from funcloop.random._refused import REFUSED, refused
from funcloop.random._routed_attention import ATTENTION
from funcloop.random._routed_dropout import DROPOUTS
from funcloop.random._routed_factories import FACTORIES
from funcloop.random._routed_fills import FILLS
from funcloop.random._routing import Function, Route, Rule


def _inside(route: Route, func: Function, *args: Any, **kwargs: Any) -> Any:
    return route.inside(func, args, kwargs)


def _pool(with_indices: Function) -> Rule:
    """Fractional pooling hands its mode a dispatcher, which would come straight back."""

    def rule(route: Route, func: Function, *args: Any, **kwargs: Any) -> Any:
        return route.inside(with_indices, args, kwargs)[0]

    return rule


#: Python functions of torch whose bodies draw.
_PYTHON = (
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    F.rrelu,
    F.gumbel_softmax,
    F.multi_head_attention_forward,
    F.fractional_max_pool2d_with_indices,
    F.fractional_max_pool3d_with_indices,
    nn.init.uniform_,
    nn.init.normal_,
    nn.init.kaiming_uniform_,
    torch.lobpcg,
    torch.pca_lowrank,
    torch.svd_lowrank,
)

RULES: dict[Function, Rule] = {
    **FACTORIES,
    **FILLS,
    **DROPOUTS,
    **ATTENTION,
    **REFUSED,
    **dict.fromkeys(_PYTHON, _inside),
    F.fractional_max_pool2d: _pool(F.fractional_max_pool2d_with_indices),
    F.fractional_max_pool3d: _pool(F.fractional_max_pool3d_with_indices),
}


@functools.cache
def operator_rule(operator: Any) -> Rule | None:
    """The rule of an operator of `torch.ops`: that of the function of its name, or a refusal."""
    if not is_seeded(operator):
        return None
    space, name = operator_name(operator).split("::")
    function = getattr(torch, name, None) or getattr(torch.Tensor, name, None)
    rule = RULES.get(function) if function and space == "aten" else None
    return rule or refused(space, name)
