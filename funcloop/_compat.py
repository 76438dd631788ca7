"""The only file that touches torch-private names; each with its reason and the versions checked.

Checked on torch 2.13.0 (CPU). What only tracing and compiling need is imported where it is used:
Dynamo, sympy and the fake tensors take a second to import.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch._C._functorch as torch_functorch
import torch.nn.utils.parametrize as torch_parametrize
import torch.utils._python_dispatch as torch_dispatch
import torch.utils._pytree as torch_pytree
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor
from torch.utils._device import DeviceContext

if TYPE_CHECKING:
    from torch.fx import GraphModule

_DIFFERENTIATING = (torch_functorch.TransformType.Grad, torch_functorch.TransformType.Jvp)


class NodeRule(NamedTuple):
    """How torch takes a registered container type apart and puts it together."""

    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten: Callable[[Iterable[Any], Any], Any]


def registered_node(kind: type) -> NodeRule | None:
    """The rule that torch's pytree registry holds for `kind`, or None for a leaf.

    Why private: users and libraries register their containers with torch (Hugging Face outputs,
    dataclasses), and torch has no public look-up.
    """
    node = torch_pytree.SUPPORTED_NODES.get(kind)
    return None if node is None else NodeRule(node.flatten_fn, node.unflatten_fn)


def differentiating() -> bool:
    """Whether a torch.func transform that differentiates (grad, vjp, jvp) is running around us.

    Why private: torch.func has no public question for this, and a pure function has to know it. At
    top level the graph of plain autograd is cut (a step must not chain the graphs of all steps);
    inside `torch.func.grad` nothing may be cut, or second derivatives are silently lost.
    """
    stack = torch_functorch.get_interpreter_stack()
    return stack is not None and any(level.key() in _DIFFERENTIATING for level in stack)


def transforming() -> bool:
    """Whether a torch.func transform, a tracer or a torch function mode is running around us.

    Why private: torch.func has no public question for this, nor have `make_fx` and the stack of
    modes. A compiled function called inside any of them has to step aside and run as plain Python:
    its graph would hide what they have to see, or keep what they said (a route's key) for ever.
    """
    return (
        torch_functorch.peek_interpreter_stack() is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
        or torch.compiler.is_compiling()
        or any(not isinstance(mode, DeviceContext) for mode in function_modes())
    )


def function_modes() -> Iterator[Any]:
    """The torch function modes around us, from the outside inwards.

    Why private: torch has no public way to look at the stack of modes.
    """
    for place in range(torch._C._len_torch_function_stack()):
        yield torch._C._get_function_stack_at(place)


def inductor_operators() -> dict[Any, Callable[..., Any]]:
    """How Inductor takes operators apart that it has no code for.

    Why private: the table has no public name. With it one trace does what AOTAutograd's would.
    """
    import torch._inductor.lowering  # noqa: F401  # decompositions ask it, and do not import it
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


def trace_flat(
    f: Callable[..., Sequence[Any]],
    leaves: Sequence[Tensor],
    dynamic: Sequence[int] = (),
    decompositions: Mapping[Any, Callable[..., Any]] = MappingProxyType({}),
) -> tuple[GraphModule, Sequence[Tensor]]:
    """One graph of plain operators for `f(*leaves)`, and the fake tensors it was traced with.

    The leading dimension of the leaves at the places `dynamic` is one symbol for all of them.

    Why private: `make_fx` and the fake tensors it needs have no public name; Dynamo is no way
    around them, since it drops the backward of custom autograd Functions inside torch.func.grad.
    The shape environment knows no sizes that depend on values, so a look at a value fails at the
    user's own line; without one, Inductor would not keep what it compiled for the next process.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    fakes = [
        _fake(mode, leaf.detach(), number if number in dynamic else None)
        for number, leaf in enumerate(leaves)
    ]
    before = [fake._version for fake in fakes]
    dispatcher = enable_python_dispatcher() if dynamic else contextlib.nullcontext()
    with mode, dispatcher:
        # Forward mode's zero tensors are made real ones: torch infers arithmetic with them on the
        # meta device, and of a fake tensor it then keeps that device (torch 2.13).
        zeros = {torch.ops.aten._efficientzerotensor.default: torch.zeros}
        table = {**decompositions, **zeros}
        graph = make_fx(f, decomposition_table=table, tracing_mode="real")(*fakes)
    for place, (fake, version) in enumerate(zip(fakes, before, strict=True)):
        if fake._version != version:
            raise MutatedInput(place)
    return graph, fakes


def _fake(mode: Any, leaf: Tensor, number: int | None) -> Tensor:
    """A fake tensor; with a number, of a symbolic leading dimension."""
    if number is None:
        return mode.from_tensor(leaf, static_shapes=True)
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    # DUCK: equal sizes are one symbol, so the leaves of a batch have the same leading dimension.
    sizes = [DimDynamic.DUCK, *[DimDynamic.STATIC] * (leaf.ndim - 1)]
    context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
    source = ConstantSource(f"leaf{number}")
    return mode.from_tensor(leaf, symbolic_context=context, source=source)


def accepted_sizes(fake: Tensor) -> Callable[[int], bool] | None:
    """Whether a graph traced with this fake tensor is right for another leading dimension.

    None where tracing has made the dimension a constant.

    Why private: what a graph takes for granted of its symbols is kept in the shape environment.
    """
    size: Any = fake.shape[0]
    environment = fake.fake_mode.shape_env  # type: ignore[attr-defined]  # a fake tensor
    expression = environment.simplify(size.node.expr) if isinstance(size, torch.SymInt) else None
    if expression is None or not expression.is_symbol:
        return None
    guards = [guard.expr for guard in environment.guards]

    @functools.cache
    def accepts(size: int) -> bool:
        return size > 1 and all(bool(guard.subs(expression, size)) for guard in guards)

    return accepts


class OperatorCalled(Exception):
    """Raised by `locate_operator` at the first call that was looked for; `operator` is its name."""

    def __init__(self, operator: str) -> None:
        super().__init__(operator)
        self.operator = operator


def locate_operator(
    f: Callable[..., Any],
    fakes: Sequence[Tensor],
    wanted: Callable[[Any, Sequence[Any], dict[str, Any]], bool],
) -> None:
    """Run `f` on fake tensors and raise OperatorCalled from the first call that is wanted.

    Why private: a traced node keeps no line of the user's code, and a dispatch mode, which sees
    operators under every torch.func transform, has no public name.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if wanted(func, args, kwargs or {}):
                raise OperatorCalled(str(func))
            return func(*args, **(kwargs or {}))

    mode = next((fake.fake_mode for fake in fakes), None)  # type: ignore[attr-defined]  # fakes
    with mode or FakeTensorMode(allow_non_fake_inputs=True), Watch():
        f(*fakes)


class MutatedInput(Exception):
    """The traced function wrote into its argument number `place`."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def looks_at_values(error: Exception) -> bool:
    """Whether tracing failed because the function looked at a value, or let one decide a shape.

    Why private: the exceptions of fake tensors have no public name; vmap and numpy conversion say
    the same in their messages only.
    """
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
    messages = (".item()", "data-dependent control flow", ".numpy() is not supported")
    return isinstance(error, kinds) or any(part in str(error) for part in messages)


def inductor_default_cache() -> str:
    """Where Inductor keeps its code when nobody has said where.

    Why private: importing Inductor puts its choice into the environment, where it looks like the
    user's.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return default_cache_dir()


def builds_every_vector_isa() -> bool:
    """Whether the C++ compiler builds for each vector extension of this x86 processor.

    Why private: Inductor asks a process of its own for each of them, in every process that loads
    compiled code (two seconds on a busy machine), and has no public switch that remembers.
    """
    from torch._inductor import cpu_vec_isa

    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    has = cpu_vec_isa.x86_isa_checker()
    isas = [
        isa
        for isa in cpu_vec_isa.supported_vec_isa_list
        if all(flag in has for flag in str(isa).split())
    ]
    return all(map(bool, isas))


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


def is_wrapper(tensor: Tensor) -> bool:
    """Whether a tensor is a subclass around others, such as a DTensor.

    Why private: only AOTAutograd takes such a tensor apart, and its question has no public name.
    """
    return torch_dispatch.is_traceable_wrapper_subclass(tensor)


def inner_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensors inside a wrapper.

    Why private: the protocol by which wrappers are taken apart has no public name.
    """
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # wrappers have it
    found = [getattr(tensor, name) for name in names]
    return [inner for inner in found if isinstance(inner, Tensor)]  # a DTensor has a mesh as well


def compiled_original(module: torch.nn.Module) -> torch.nn.Module | None:
    """The module inside a `torch.compile`d one, or None.

    Why private: the wrapper's class has no public name. Where Dynamo was never imported there are
    no compiled modules, and importing it here would cost a second.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None or not isinstance(module, frames.OptimizedModule):
        return None
    return module._modules["_orig_mod"]


def storage_of(tensor: Tensor) -> int:
    """A number that two tensors share when they share memory, also through functorch wrappers.

    Why private: wrapped tensors of vmap and grad have no storage of their own, and meta and fake
    storages have no address to compare.
    """
    while torch_functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch_functorch.get_unwrapped(tensor)
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse tensors, some wrapper subclasses
        return id(tensor)


def wrapper_chain(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor and what torch.func's transforms wrapped around it, from the outside inwards.

    Why private: `requires_grad` of a wrapped tensor speaks of the innermost transform only.
    """
    yield tensor
    while torch_functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch_functorch.get_unwrapped(tensor)
        yield tensor


def forward_levels() -> int:
    """How many torch.func.jvp transforms are running around us.

    Why private: torch.func has no public question for this. In two of them, one inside the other,
    the `jvp` of a custom autograd.Function silently gives zero (torch 2.13).
    """
    stack = torch_functorch.get_interpreter_stack() or []
    return sum(level.key() == torch_functorch.TransformType.Jvp for level in stack)


def in_forward_mode() -> bool:
    """Whether a forward-mode derivative is being taken, by torch.func or by torch.autograd.

    Why private: neither has a public question for this.
    """
    return forward_levels() > 0 or torch.autograd.forward_ad._current_level >= 0


def values_are_known(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor exist: nobody traces, and it is no fake or meta tensor.

    Why private: neither fake tensors nor `make_fx` have a public question for this.
    """
    *_, plain = wrapper_chain(tensor)
    fakes = sys.modules.get("torch._subclasses.fake_tensor")  # not imported: there are none yet
    tracing = (
        torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
        or torch.compiler.is_compiling()
    )
    return not (tracing or plain.is_meta or (fakes and isinstance(plain, fakes.FakeTensor)))


def batch_levels(tensor: Tensor) -> frozenset[int]:
    """The levels of the vmaps that a tensor is batched in.

    Why private: torch.func has no public question for whether a tensor is batched.
    """
    if not torch_functorch.is_functorch_wrapped_tensor(tensor):
        return frozenset()
    levels = set()
    while torch_functorch.is_functorch_wrapped_tensor(tensor):
        if torch_functorch.is_batchedtensor(tensor):
            levels.add(torch_functorch.maybe_get_level(tensor))
        tensor = torch_functorch.get_unwrapped(tensor)
    return frozenset(levels)


def transform_depth() -> int:
    """How many torch.func transforms are running around us.

    Why private: torch.func has no public question for this.
    """
    return len(torch_functorch.get_interpreter_stack() or ())


def vmapping() -> bool:
    """Whether a vmap is running around us.

    Why private: torch.func has no public question for this.
    """
    stack = torch_functorch.get_interpreter_stack() or ()
    return any(level.key() == torch_functorch.TransformType.Vmap for level in stack)


def lacks_rules(tensors: Iterable[Tensor]) -> bool:
    """Whether a fused operator over these tensors may have no rule for the transforms around us.

    So it is where a tensor is batched by vmap, under forward mode, and under a gradient of a
    gradient: fused kernels come with a first backward at most.

    Why private: torch.func has no public question for what is running around us.
    """
    stack = torch_functorch.get_interpreter_stack()
    if stack is None:
        return False
    kinds = [level.key() for level in stack]
    kind = torch_functorch.TransformType
    deep = kind.Jvp in kinds or kinds.count(kind.Grad) > 1
    return deep or any(batch_levels(tensor) for tensor in tensors)


def backward_would_be_lost() -> bool:
    """Whether Dynamo is tracing through a torch.func transform.

    Why private: torch.func has no public question for whether a transform is running, and this one
    is the only that Dynamo can answer while it traces. There it inlines the forward of a custom
    autograd Function and drops its backward (torch 2.13.0, 2.14.1).
    """
    return torch.compiler.is_dynamo_compiling() and torch._C._are_functorch_transforms_active()


def forward_mode() -> contextlib.AbstractContextManager[None]:
    """Inside: an outer forward-mode level goes on, where torch has switched it off.

    Why private: torch runs the `jvp` of a custom autograd Function with forward mode switched off,
    so that `jvp(jvp(f))` is silently zero (torch 2.13.0), and the switch has no public name.
    """
    return torch.autograd.forward_ad._set_fwd_grad_enabled(True)


def without_tangent(tensor: Tensor) -> Tensor:
    """The tensor without its tangent of the innermost level of forward mode.

    Why private: `unpack_dual` has no batching rule (torch 2.13.0), so a batched tensor is unpacked
    inside its wrapper, and torch.func has no public way into one.
    """
    if torch_functorch.is_batchedtensor(tensor):
        inner = without_tangent(torch_functorch.get_unwrapped(tensor))
        dim, level = torch_functorch.maybe_get_bdim(tensor), torch_functorch.maybe_get_level(tensor)
        return torch_functorch._add_batch_dim(inner, dim, level)
    return torch.autograd.forward_ad.unpack_dual(tensor).primal


def untraced() -> contextlib.AbstractContextManager[Any]:
    """Inside: operators run at once, on real tensors, whatever tracer is watching.

    Why private: `make_fx` has no public way to step aside. What is computed here is a constant of
    the graph; without it, even `detach()` would put the live parameter into the graph.
    """
    return torch_dispatch._disable_current_modes()


class plain_modules:
    """Inside: checkpointed blocks run as plain calls, and no parametrization comes from a cache.

    Why private: a checkpointed block recomputes itself during backward, when the module has its own
    tensors again, and it needs saved-tensor hooks, which torch.func.grad forbids; functions import
    `checkpoint` by name, so what it calls is replaced while any pure call runs. A parametrization
    cache that stands open outside holds the values of other parameters. Checked on torch 2.13.0.
    """

    _lock = threading.Lock()
    _depth = 0
    _thread = threading.local()  # its `depth`: how many pure calls this thread is in
    _generator = staticmethod(torch_checkpoint._checkpoint_without_reentrant_generator)
    _function = torch_checkpoint.CheckpointFunction

    def __enter__(self) -> None:
        kind = plain_modules
        kind._thread.depth = kind.depth() + 1
        with kind._lock:
            kind._depth += 1
            torch_checkpoint._checkpoint_without_reentrant_generator = _nothing_around
            torch_checkpoint.CheckpointFunction = _PlainCall  # type: ignore[misc]  # only `apply`
        self._cache = torch_parametrize._cache
        torch_parametrize._cache = {}

    def __exit__(self, *exception: object) -> None:
        kind = plain_modules
        torch_parametrize._cache = self._cache
        kind._thread.depth -= 1
        with kind._lock:
            kind._depth -= 1
            if not kind._depth:
                torch_checkpoint._checkpoint_without_reentrant_generator = kind._generator
                torch_checkpoint.CheckpointFunction = kind._function  # type: ignore[misc]

    @classmethod
    def depth(cls) -> int:
        """How many pure calls this thread is in."""
        return getattr(cls._thread, "depth", 0)


def _nothing_around(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Takes the place of the generator that checkpoint steps before and after the block."""
    yield


class _PlainCall:
    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


#: Types of the operators that `torch.ops` holds.
OPERATORS = frozenset((torch._ops.OpOverload, torch._ops.OpOverloadPacket))


#: Functions that pack and pad sequences of several lengths; torch.nn.utils.rnn calls them by these.
PACK = torch._VF._pack_padded_sequence  # type: ignore[attr-defined]  # made at import
PAD = torch._VF._pad_packed_sequence  # type: ignore[attr-defined]


def written_by(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operator of `torch.ops` says it writes.

    Why private: the schema is the only word on it, and its classes have no public name.
    """
    packet = isinstance(operator, torch._ops.OpOverloadPacket)
    for overload in [getattr(operator, n) for n in operator.overloads()] if packet else [operator]:
        places = list(enumerate(overload._schema.arguments))
        written = [(i, a.name) for i, a in places if a.alias_info and a.alias_info.is_write]
        found = [args[i] if i < len(args) else kwargs.get(name) for i, name in written]
        if found:
            return found
    return []


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


def is_seeded(operator: Any) -> bool:
    """Whether an operator of `torch.ops` draws from a generator.

    Why private: the tag is public, but a packet's overloads are not.
    """
    packet = isinstance(operator, torch._ops.OpOverloadPacket)
    overloads = [getattr(operator, n) for n in operator.overloads()] if packet else [operator]
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def operator_name(operator: Any) -> str:
    """The name of an operator of `torch.ops` without its overload, as in "aten::rand"."""
    packet = isinstance(operator, torch._ops.OpOverloadPacket)
    return (operator if packet else operator.overloadpacket)._qualified_op_name


def argument_defaults(space: str, name: str) -> dict[str, Any]:
    """The arguments of `torch.ops.<space>.<name>`, of its first overload, with their defaults.

    Why private: as above.
    """
    packet = getattr(getattr(torch.ops, space), name)
    overload = getattr(packet, packet.overloads()[0])
    return {argument.name: argument.default_value for argument in overload._schema.arguments}


def runs_again() -> bool:
    """Whether we are in a block of torch.utils.checkpoint, whose backward pass will call it again.

    Why private: the blocks leave two traces, their saved-tensor hooks (use_reentrant=False) and the
    frame of their autograd Function (use_reentrant=True).
    """
    if torch.compiler.is_compiling() or plain_modules.depth():
        return False  # the block becomes part of a graph, or of a pure call, and is called once
    autograd = torch._C._autograd  # type: ignore[attr-defined]  # the stubs lack it
    hooks = autograd._top_saved_tensors_default_hooks(False)
    if hooks and torch.is_grad_enabled() and hooks[0].__module__ == torch_checkpoint.__name__:
        return True
    frame = sys._getframe()
    while frame is not None:
        ours = frame.f_globals.get("__name__") == torch_checkpoint.__name__
        if ours and frame.f_code.co_name in ("forward", "backward"):
            return True
        frame = frame.f_back
    return False


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


def has_onednn() -> bool:
    """Whether `onednn_linear` can be called: torch may be built without oneDNN.

    Why private: as below.
    """
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias` by oneDNN, for float32 matrices of any strides.

    Why private: it is the only way to oneDNN's float32 products, which torch takes by itself only
    for constant weights. Checked on torch 2.13.0.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
