"""The outputs of a module's layers, seen and replaced during one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

#: `(path, output) -> output` for one layer.
Tap = Callable[[str, Any], Any]


class tapped:
    """Inside: the outputs of the layers at these paths go through `tap`.

    The hooks are torch's global ones, so that nothing is written into any module, and they look at
    this thread only. The first module that is called is the root, which the paths start from.
    """

    def __init__(self, paths: Collection[str], tap: Tap) -> None:
        self._paths, self._tap = frozenset(paths), tap
        self._thread = threading.get_ident()
        self._by_id: dict[int, str] = {}

    def __enter__(self) -> None:
        self._handles = (
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after),
        )

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, args: Any) -> None:
        if not self._by_id and threading.get_ident() == self._thread:
            self._by_id = {id(child): path for path, child in module.named_modules()}

    def _after(self, module: nn.Module, args: Any, output: Any) -> Any:
        if threading.get_ident() != self._thread:
            return None
        path = self._by_id.get(id(module))
        return self._tap(path, output) if path in self._paths else None
