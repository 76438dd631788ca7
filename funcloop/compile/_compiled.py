"""Ahead of time: a function lowered from example arguments, and compiled for their kind alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import torch

from funcloop._errors import StructureError
from funcloop._pytree import Structure, unflatten
from funcloop.compile._backend import Backend
from funcloop.compile._compiled_graph import CompiledGraph, compile_traced
from funcloop.compile._dynamic import Dynamic
from funcloop.compile._package import load_package, save_package
from funcloop.compile._progress import compiling
from funcloop.compile._retrace import differences
from funcloop.compile._signature import (
    ConstantSpec,
    Signature,
    TensorSpec,
    as_leaves,
    signature,
)
from funcloop.compile._trace import ONE_AT_A_TIME, Traced


class Lowered:
    """A function traced for one kind of arguments; made by `jit(f).lower(*example)`.

    Attributes:
        traced: The graph and what surrounds it; `print(lowered.traced.graph.code)` shows it.
    """

    def __init__(
        self,
        name: str,
        traced: Traced,
        leaves: Sequence[Any],
        structure: Structure | str,
        donated: list[tuple[int, int]],
        backend: Backend,
        options: Mapping[str, Any],
        dynamic: Dynamic | None,
    ) -> None:
        self._name = name
        self.traced = traced
        self._kind = signature(leaves, structure, dynamic.places if dynamic else ())
        self._rest = leaves, structure, donated, backend, options, dynamic

    def compile(self) -> Compiled:
        """Compile the graph."""
        return Compiled(self.compile_graph(), self._kind, self.traced)

    def compile_graph(self) -> CompiledGraph:
        """The compiled graph alone, as `jit` keeps it."""
        with ONE_AT_A_TIME, compiling(self._name, len(self.traced.graph.graph.nodes)):
            return compile_traced(self.traced, *self._rest)


class Compiled:
    """A function compiled for one kind of arguments; made by `Lowered.compile` or `load_compiled`.

    A call looks at structure, shapes, strides, dtypes and devices, and runs; it never traces.
    """

    def __init__(self, graph: CompiledGraph, kind: Signature, traced: Traced | None) -> None:
        self._graph = graph
        self._kind = kind
        self._traced = traced

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result.

        Raises:
            StructureError: these arguments are of another kind than the example.
        """
        leaves = self._graph.dispatch((args, kwargs))
        if leaves is None:
            leaves, structure = as_leaves((args, kwargs))
            free = self._graph.dynamic
            fits = structure == self._kind.structure and (free is None or free.fits(leaves))
            places = free.places if free is not None and fits else ()
            given = signature(leaves, structure, places)._replace(ambient=self._kind.ambient)
            if given != self._kind:
                raise StructureError(
                    "a compiled function takes arguments of the kind it was lowered for",
                    "; ".join(line.strip() for line in differences(given, self._kind)),
                    "lower it for these arguments, or call the jitted function",
                )
        return self._graph.run(leaves)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The positional arguments that it takes: constants, and tensors on the meta device.

        `checkpoint.restore(path, like=compiled.arguments[0])` reads a state for it. A dynamic size
        is zero here.
        """
        leaves = [_like(spec) for spec in self._kind.leaves]
        args, _ = unflatten(self._kind.structure, leaves)
        return args

    def save(self, path: str | PathLike[str]) -> None:
        """Write the compiled code and what a call needs into one file (an AOTInductor package).

        It runs with the same torch version, on the same kind of device and processor. The file
        appears whole or not at all.

        Args:
            path: Where to; the name ends in `.pt2`.

        Raises:
            StructureError: arguments or results hold containers or constants that JSON cannot.
            CompileError: the function was itself loaded from a file.
        """
        save_package(path, self._graph, self._kind, self._traced)


def _like(spec: TensorSpec | ConstantSpec) -> Any:
    if isinstance(spec, ConstantSpec):
        return spec.value
    shape = [max(size, 0) for size in spec.shape]
    return torch.empty_strided(shape, spec.strides, dtype=spec.dtype, device="meta")


def load_compiled(path: str | PathLike[str]) -> Compiled:
    """A function that `Compiled.save` wrote, without tracing or compiling anything.

    Raises:
        CompileError: the file is no such package, or was made by another torch version, or for a
            device or processor that is not here.

    >>> from funcloop.compile import jit
    >>> compiled = jit(lambda x: 2 * x).lower(torch.ones(3)).compile()  # doctest: +SKIP
    >>> compiled.save("double.pt2")  # doctest: +SKIP
    >>> load_compiled("double.pt2")(torch.ones(3))  # doctest: +SKIP
    tensor([2., 2., 2.])
    """
    return Compiled(*load_package(path), None)
