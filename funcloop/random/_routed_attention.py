"""Rule of scaled dot-product attention with dropout: the plain formula, its weights dropped."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from funcloop.random._bernoulli import require_probability
from funcloop.random._dropout import dropout
from funcloop.random._routing import Function, Route, Rule, bind

_SPEC = {
    "query": None,
    "key": None,
    "value": None,
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}


def _attention(route: Route, func: Function, *args: Any, **kwargs: Any) -> Tensor:
    query, key, value, mask, p, causal, scale, grouped = bind(func, _SPEC, args, kwargs)
    require_probability(p)
    if p == 0:
        return func(*args, **kwargs)
    if grouped:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * scale) @ key.transpose(-2, -1)  # (..., L, S)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    weights = _softmax(scores, mask)
    return dropout(route.take(func, query.device), weights, p) @ value


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The weights; zero, as in torch, where a query may look at nothing."""
    if mask is None:
        return scores.softmax(-1)
    forbids = mask.dtype is torch.bool
    scores = scores.masked_fill(~mask, float("-inf")) if forbids else scores + mask
    blind = (scores == float("-inf")).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)


ATTENTION: dict[Function, Rule] = {F.scaled_dot_product_attention: _attention}
