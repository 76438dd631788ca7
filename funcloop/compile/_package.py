"""A compiled graph in one file: an AOTInductor package with the structures of its calls beside."""

from __future__ import annotations

import json
import os
from os import PathLike
from typing import Any

import torch

from funcloop._atomic import replaced
from funcloop._compat import load_aot_package, save_aot_package
from funcloop._errors import CompileError, StructureError
from funcloop._pytree import Structure
from funcloop._structure_json import from_json, to_json
from funcloop.compile._compiled_graph import CompiledGraph, assemble
from funcloop.compile._signature import ConstantSpec, Signature, TensorSpec, signature
from funcloop.compile._trace import Traced

_KEY = "funcloop"
_CONSTANTS = (bool, int, float, str)


def save_package(
    path: str | PathLike[str], graph: CompiledGraph, kind: Signature, traced: Traced | None
) -> None:
    """Compile the traced graph into a package at `path`.

    Raises:
        StructureError: something cannot be written as JSON.
        CompileError: there is no graph, since the function was itself loaded, or a size is dynamic.
    """
    if traced is None:
        raise CompileError(
            "a package is written from a traced graph",
            "this function was loaded from a file",
            "copy that file",
        )
    if graph.dynamic is not None:
        raise CompileError(
            "a package is written for one size of the batch",
            "a leading dimension is dynamic",
            "lower a function that is jitted without dynamic=",
        )
    facts = {
        "torch": torch.__version__,
        "device": _device_kind(kind),
        "processor": sorted(_capabilities()),
        "arguments": _rebuilt(kind.structure),
        "leaves": [_spec_to_json(spec) for spec in kind.leaves],
        "result": _rebuilt(traced.output),
        "constants": [_constant_to_json(value) for value in graph.constants],
        "kept": graph.kept,
        "donated": graph.donated,
    }
    with replaced(path, ".pt2") as temporary:
        save_aot_package(str(temporary), traced.graph, traced.fakes, {_KEY: json.dumps(facts)})


def load_package(path: str | PathLike[str]) -> tuple[CompiledGraph, Signature]:
    """The compiled graph of a package, and the kind of arguments that it takes.

    Raises:
        CompileError: the file is no such package, or does not fit torch or the machine.
    """
    try:
        call, metadata = load_aot_package(os.fspath(path))
        facts = json.loads(metadata[_KEY])
    except (RuntimeError, KeyError, ValueError, OSError) as error:
        raise CompileError(
            "load_compiled reads what Compiled.save wrote",
            f"{os.fspath(path)}: {type(error).__name__} {str(error).strip()[:200]}",
            "save it again",
        ) from error
    _check_fits(facts, os.fspath(path))
    leaves = [_example(spec) for spec in facts["leaves"]]
    structure, result = from_json(facts["arguments"]), from_json(facts["result"])
    constants = [constant and constant[0] for constant in facts["constants"]]
    donated = [(i, o) for i, o in facts["donated"]]
    graph = assemble(call, leaves, structure, result, constants, facts["kept"], donated, [])
    return graph, signature(leaves, structure)


def _rebuilt(structure: Structure | str) -> Any:
    """The JSON of a structure, read back once: what cannot be loaded is refused here."""
    value = to_json(structure)
    from_json(value)
    return value


def _check_fits(facts: dict[str, Any], path: str) -> None:
    missing = sorted(set(facts["processor"]) - _capabilities())
    device = facts["device"]
    if facts["torch"] != torch.__version__:
        problem = f"{path} is of torch {facts['torch']}, and this is {torch.__version__}"
    elif device != "cpu" and not torch.get_device_module(device).is_available():
        problem = f"{path} runs on {device}, which is not available"
    elif missing:
        problem = f"{path} needs a processor with {', '.join(missing)}"
    else:
        return
    raise CompileError(
        "saved code runs where it was compiled for", problem, "lower and compile it here"
    )


def _capabilities() -> set[str]:
    return {name for name, has in torch.cpu.get_capabilities().items() if has is True}


def _device_kind(kind: Signature) -> str:
    kinds = {spec.device.type for spec in kind.leaves if isinstance(spec, TensorSpec)}
    return next(iter(kinds - {"cpu"}), "cpu")


def _spec_to_json(spec: TensorSpec | ConstantSpec) -> Any:
    if isinstance(spec, TensorSpec):
        dtype = str(spec.dtype).removeprefix("torch.")
        return [list(spec.shape), list(spec.strides), dtype, str(spec.device)]
    return {"constant": _constant_to_json(spec.value)}


def _example(spec: Any) -> Any:
    """A leaf that has what `_spec_to_json` wrote."""
    if isinstance(spec, dict):
        return spec["constant"][0]
    shape, strides, dtype, device = spec
    return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=device)


def _constant_to_json(value: Any) -> list[Any] | None:
    """The value in a list, and None for a tensor's place."""
    if value is None:
        return None
    if type(value) not in _CONSTANTS:
        raise StructureError(
            "a saved function has strings, bools and numbers as constants",
            f"{value!r}",
            "close over it instead of passing it",
        )
    return [value]
