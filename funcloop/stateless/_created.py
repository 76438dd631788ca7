"""Parameters made during a call: nobody would ever train them, so they are refused."""

from __future__ import annotations

import threading
from typing import NoReturn

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from funcloop._errors import HiddenStateError


class no_new_parameters:  # a context manager is called like a function
    """Inside, this thread registers no parameter with any module.

    Raises:
        HiddenStateError: inside, at the line that makes one.
    """

    __slots__ = ("_handle", "_thread")

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._handle = register_module_parameter_registration_hook(self._refuse)

    def __exit__(self, *exception: object) -> None:
        self._handle.remove()

    def _refuse(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and threading.get_ident() == self._thread:
            _refuse(module, name)


def _refuse(module: nn.Module, name: str) -> NoReturn:
    raise HiddenStateError(
        "parameters are made before stateless(net), so that they are among its params",
        f"the forward makes parameter {name} of a {type(module).__name__}",
        "make the module or parameter in __init__",
    )
