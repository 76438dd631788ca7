"""Wrappers that run a module (compiled, data parallel) are looked through; names stay bare."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from funcloop._compat import compiled_original
from funcloop._errors import UnsupportedError

#: torch's two generations of sharded modules, by name: importing them takes long.
_SHARDED = {"FullyShardedDataParallel", "FSDPModule"}


def unwrap(module: nn.Module, path: str = "") -> nn.Module:
    """The module inside any nesting of compiled and data-parallel wrappers.

    A pure function has no use for a wrapper: the step that calls it is compiled and reduced as a
    whole.

    Raises:
        UnsupportedError: the module is a ScriptModule, or sharded (FSDP).
    """
    while True:
        if isinstance(module, (DataParallel, DistributedDataParallel)):
            inner = module.module
        else:
            inner = compiled_original(module)
        if inner is None:
            break
        module = inner
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError(
            "a ScriptModule keeps its tensors where they cannot be swapped",
            _name(path),
            "give the Python module it was made from",
        )
    if _SHARDED & {kind.__name__ for kind in type(module).__mro__}:
        raise UnsupportedError(
            "a sharded module has no whole parameters to swap",
            _name(path),
            "give the bare module and shard its params with funcloop.parallel.shard",
        )
    return module


def walk(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, under its first bare path, parents before children."""
    yield from _walk(net, "", set())


def _walk(module: nn.Module, path: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    module = unwrap(module, path)
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{path}.{name}" if path else name, seen)


def _name(path: str) -> str:
    return f"module {path!r}" if path else "the module itself"
