"""A flat graph as an AOTInductor package, written to a file and loaded from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.fx import GraphModule


def save_aot_package(
    path: str, graph: GraphModule, fakes: Sequence[Tensor], metadata: dict[str, str]
) -> None:
    """Compile a flat graph into an AOTInductor package at `path`.

    Why private: AOTInductor's documented entry points live in torch._inductor.
    """
    from torch._inductor import aoti_compile_and_package

    examples = tuple(
        torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device).zero_()
        for fake in fakes
    )
    with torch.no_grad():
        program = torch.export.export(graph, examples)
        configs = {"aot_inductor.metadata": metadata}
        aoti_compile_and_package(program, package_path=path, inductor_configs=configs)


def load_aot_package(
    path: str,
) -> tuple[Callable[[list[Tensor]], Sequence[Tensor]], dict[str, str]]:
    """The callable of an AOTInductor package, and its metadata.

    Why private: the documented loader imports Inductor and Dynamo, seconds of work that running
    compiled code has no need of; this is the C++ loader beneath it.
    """
    from torch._C._aoti import AOTIModelPackageLoader

    single_threaded, runners, device_index = False, 1, -1
    loader = AOTIModelPackageLoader(path, "model", single_threaded, runners, device_index)
    return loader.run, loader.get_metadata()
