"""A flat graph as compiled code: the backends of torch.compile, and Inductor without Dynamo."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.fx import GraphModule


def inductor_operators() -> dict[Any, Callable[..., Any]]:
    """How Inductor takes operators apart that it has no code for.

    Why private: the table has no public name. With it one trace does what AOTAutograd's would.
    """
    import torch._inductor.lowering  # noqa: F401  # decompositions ask it, and do not import it
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


def compile_graph(
    graph: GraphModule, fakes: Sequence[Tensor], backend: str | Callable[..., Any]
) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """What a torch.compile backend makes of a flat graph: a function of a list, which it empties.

    Why private: calling the backend itself leaves Dynamo and its guards out; funcloop's own look-up
    has already checked structure, shapes, strides, dtypes and devices.
    """
    from torch._dynamo.backends.registry import lookup_backend

    with torch.no_grad():
        call = lookup_backend(backend)(graph, list(fakes))
    return lambda tensors: call(*tensors)


def compile_inductor(
    graph: GraphModule, fakes: Sequence[Tensor]
) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """What Inductor makes of a flat graph: a function of a list, which it empties.

    Why private: the public way leads through AOTAutograd, which has nothing to do for a graph that
    is traced already. Without it a call costs 15 us less and compiling a tenth less. On the CPU the
    calls of the kernels are C++ too: all kernels are then in one file, where each of its own would
    read two seconds of headers (a 4-layer GPT step: 10 s of C++ compiler instead of 75), and a call
    costs 20 us less. Checked on torch 2.13.0.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile_fx, config
    from torch._inductor.virtualized import V

    mode = fakes[0].fake_mode  # type: ignore[attr-defined]  # fake tensors
    on_cpu = all(fake.device.type == "cpu" for fake in fakes)
    in_cpp = on_cpu and not any(_returns_list(node.target) for node in graph.graph.nodes)
    settings = {**compile_fx.get_cpp_wrapper_config(), "cpp_wrapper_build_separate": True}
    with (
        torch.no_grad(),
        config.patch(settings if in_cpp else {}),
        V.set_fake_mode(mode),
        tracing(TracingContext(mode)),
        enable_python_dispatcher(),
    ):
        return compile_fx.compile_fx_forward(
            graph,
            list(fakes),
            compile_fx.get_num_model_outputs(graph),
            len(fakes),
            compile_fx.create_compiler_config_extra(graph),
            functools.partial(compile_fx.compile_fx_inner, cpp_wrapper=in_cpp),
            is_inference=True,
        )


def _returns_list(operator: Any) -> bool:
    """Whether it is a custom operator that returns a list: C++ calls of one crash (torch 2.13)."""
    schema = getattr(operator, "_schema", None)
    if schema is None or operator.namespace in ("aten", "prims"):
        return False
    return any(isinstance(result.type, torch.ListType) for result in schema.returns)


class UnknownOption(Exception):
    """Inductor has no setting of this `name`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@contextlib.contextmanager
def inductor_options(options: Mapping[str, Any]) -> Iterator[None]:
    """Inside: Inductor compiles with these settings.

    Why private: `torch.compile(options=)` is the public way to them, and it goes through Dynamo.

    Raises:
        UnknownOption: there is no such setting.
    """
    from torch._inductor import config

    for name in options:
        if name not in config.get_config_copy():
            raise UnknownOption(name)
    with config.patch(dict(options)):
        yield


def inductor_default_cache() -> str:
    """Where Inductor keeps its code when nobody has said where.

    Why private: importing Inductor puts its choice into the environment, where it looks like the
    user's.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return default_cache_dir()


@contextlib.contextmanager
def compiler_asked_by(
    remembered: Callable[[tuple[str, ...], Callable[[], Any]], Any],
) -> Iterator[None]:
    """Inside: what Inductor asks the C++ compiler goes through `remembered(question, ask)`.

    Why private: every process that loads compiled code builds or loads a library for each vector
    extension and preprocesses torch's headers, two seconds in all, and no public switch remembers
    the answers. Checked on torch 2.13.0.
    """
    from torch._inductor import codecache, cpu_vec_isa

    isa = cpu_vec_isa.VecISA
    with _ASKING:
        header, builds = codecache._precompile_header, isa.check_build

        def remembered_header(*asked: str, **command: Any) -> str:  # header and command line
            return remembered(("header", *asked), lambda: header(*asked, **command))

        def remembered_build(self: Any, code: str) -> bool:
            return remembered(("builds", self.build_arch_flags(), code), lambda: builds(self, code))

        codecache._precompile_header, isa.check_build = remembered_header, remembered_build
        try:
            yield
        finally:
            codecache._precompile_header, isa.check_build = header, builds


_ASKING = threading.RLock()


def tensor_guard(tensors: Sequence[Tensor], free: Sequence[int] = ()) -> Callable[..., bool]:
    """A function that says whether other tensors have these shapes, strides, dtypes and devices.

    The leading dimension of the tensors at the places `free` may be any.

    Why private: it is the check that Dynamo's own guards use, written in C++, ten times faster than
    looking at the attributes from Python. It may refuse tensors that are alike (a Parameter for a
    Tensor, another autocast mode), and never accepts others.
    """
    from torch._C._dynamo.guards import TensorGuards

    # The stub says one list of sizes; the C++ takes one for each tensor (torch 2.13).
    guards: Any = TensorGuards
    sizes: list[list[int | None]] = [list(tensor.shape) for tensor in tensors]
    for place in free:
        sizes[place][0] = None
    strides = [list(tensor.stride()) for tensor in tensors]
    return guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
