"""Attributes that hooks compute anew at each call: older weight_norm, spectral_norm, pruning."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def computed_attributes(modules: tuple[nn.Module, ...]) -> frozenset[tuple[int, str]]:
    """Each such attribute as `(id(vars(module)), name)`; it is no state, whatever it holds."""
    return frozenset(
        (id(vars(module)), name)
        for module in modules
        for hook in module._forward_pre_hooks.values()
        if (name := _computed_by(hook)) is not None
    )


def _computed_by(hook: object) -> str | None:
    if isinstance(hook, (WeightNorm, SpectralNorm)):
        return hook.name
    if isinstance(hook, BasePruningMethod):
        return hook._tensor_name
    return None
