"""jit: trace a pure function once for each kind of arguments, compile the graph, and reuse it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from funcloop._compat import transforming
from funcloop._pytree import Structure, unflatten
from funcloop.compile._arguments import Which, chosen
from funcloop.compile._backend import Backend, decompositions
from funcloop.compile._check import CHECKED_CALLS, check_equal, expected
from funcloop.compile._compiled import Lowered
from funcloop.compile._compiled_graph import CompiledGraph
from funcloop.compile._donation import match_arguments
from funcloop.compile._dynamic import dynamic_of, leading_places
from funcloop.compile._retrace import explain_last
from funcloop.compile._signature import Signature, Static, as_leaves, signature
from funcloop.compile._trace import ONE_AT_A_TIME, trace

P = ParamSpec("P")
R = TypeVar("R")


class Jitted(Generic[P, R]):
    """A function and its compiled graphs; made by `jit`."""

    def __init__(
        self,
        f: Callable[P, R],
        donate: tuple[int, ...],
        static: frozenset[int | str],
        dynamic: frozenset[int | str],
        backend: Backend,
        options: Mapping[str, Any] | None,
        debug: bool,
    ) -> None:
        functools.update_wrapper(self, f)
        self._f = f
        self._donate = donate
        self._static = static
        self._dynamic = dynamic
        self._backend = backend
        self._options = dict(options or {})
        self._to_check = CHECKED_CALLS if debug else 0
        self._graphs: dict[Signature, CompiledGraph] = {}
        self._last: CompiledGraph | None = None

    @property
    def traces(self) -> int:
        """The number of graphs made so far."""
        return len(self._graphs)

    def explain_retrace(self) -> str:
        """Which arguments made the last graph necessary, and how they differ."""
        return explain_last(list(self._graphs))

    def __repr__(self) -> str:
        return f"jit({self._name()}, traces={self.traces})"

    def _name(self) -> str:
        return getattr(self._f, "__name__", type(self._f).__name__)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What `f(*args, **kwargs)` returns, by the graph for arguments of this kind."""
        if transforming():
            return self._f(*args, **kwargs)
        call = self._mark_static(args, kwargs)
        compiled = self._last
        leaves = None if compiled is None or self._to_check else compiled.dispatch(call)
        if compiled is None or leaves is None:
            leaves, structure = as_leaves(call)
            compiled = self._find(leaves, structure)
            if self._to_check:
                return self._run_checked(compiled, leaves, structure)
        return compiled.run(leaves)

    def _find(self, leaves: Sequence[Any], structure: Structure | str) -> CompiledGraph:
        places = leading_places(self._dynamic, leaves, structure)
        key = signature(leaves, structure, places)
        compiled = self._graphs.get(key)
        if compiled is not None and compiled.dynamic and not compiled.dynamic.fits(leaves):
            places, key = (), signature(leaves, structure)  # a size with a graph of its own
            compiled = self._graphs.get(key)
        if compiled is None:
            compiled = self._lower(leaves, structure, places).compile_graph()
            self._graphs[key] = compiled
        self._last = compiled
        return compiled

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered:
        """Trace for arguments of this kind, ahead of time; `.compile()` then compiles the graph."""
        leaves, structure = as_leaves(self._mark_static(args, kwargs))
        places = leading_places(self._dynamic, leaves, structure)
        return self._lower(leaves, structure, places)

    def _lower(
        self, leaves: Sequence[Any], structure: Structure | str, places: tuple[int, ...]
    ) -> Lowered:
        table = decompositions(self._backend, leaves)
        with ONE_AT_A_TIME:
            traced = trace(self._call_unmarked, leaves, structure, places, table)
        dynamic = dynamic_of(places, traced.fakes, leaves) if places else None
        args, _ = unflatten(structure, leaves)
        donated = match_arguments(args, self._donate, traced.fake_output)
        return Lowered(
            self._name(),
            traced,
            leaves,
            structure,
            donated,
            self._backend,
            self._options,
            dynamic,
        )

    def _run_checked(
        self, compiled: CompiledGraph, leaves: Sequence[Any], structure: Structure | str
    ) -> R:
        self._to_check -= 1
        want = expected(self._call_unmarked, leaves, structure)
        result = compiled.run(leaves)
        check_equal(result, want)
        return result

    def _mark_static(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if not self._static:
            return args, kwargs
        return (
            tuple([Static(a) if i in self._static else a for i, a in enumerate(args)]),
            {name: Static(a) if name in self._static else a for name, a in kwargs.items()},
        )

    def _call_unmarked(self, *args: Any, **kwargs: Any) -> R:
        bare = [a.value if isinstance(a, Static) else a for a in args]
        named = {k: a.value if isinstance(a, Static) else a for k, a in kwargs.items()}
        return self._f(*bare, **named)  # type: ignore[call-arg]  # as the caller gave them


@overload
def jit(
    f: Callable[P, R],
    *,
    donate: int | Sequence[int] = (),
    static: Which = None,
    dynamic: Which = None,
    backend: Backend = "inductor",
    options: Mapping[str, Any] | None = None,
    debug: bool = False,
) -> Jitted[P, R]: ...


@overload
def jit(
    *,
    donate: int | Sequence[int] = (),
    static: Which = None,
    dynamic: Which = None,
    backend: Backend = "inductor",
    options: Mapping[str, Any] | None = None,
    debug: bool = False,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def jit(
    f: Callable[..., Any] | None = None,
    *,
    donate: int | Sequence[int] = (),
    static: Which = None,
    dynamic: Which = None,
    backend: Backend = "inductor",
    options: Mapping[str, Any] | None = None,
    debug: bool = False,
) -> Any:
    """Compile a pure function of pytrees; also a decorator.

    The function is traced once for each structure, shapes, strides, dtypes and devices of its
    arguments, with torch.func's transforms and custom autograd Functions resolved, and the one flat
    graph is then compiled. Python in it runs at trace time only. Under `torch.func` transforms, and
    inside another jitted function, the plain function runs. A compilation of over two seconds says
    so on stderr, unless FUNCLOOP_PROGRESS=0 is set. On the CPU, large float32 products
    go to the faster of MKL and oneDNN, as measured once, unless FUNCLOOP_PRODUCTS=0 is set, and
    glibc is told to keep up to 1 GiB of freed memory for the next call, unless the environment has
    settings for it (MALLOC_TRIM_THRESHOLD_).

    Args:
        f: The function. Python numbers among its arguments become 0-d tensors, so that another
            value does not re-trace; strings, bools, None and other hashable objects are constants
            of the graph.
        donate: Positions of arguments that may be overwritten. Each leaf keeps its storage and
            gets the value of the output subtree of the same structure; the tensors given raise
            when used again.
        static: Positions or names of arguments that are constants of the graph (hashable).
        dynamic: Positions or names of arguments whose leaves have a leading dimension that is a
            symbol of the graph, the same for all of them: one graph serves every size from two on.
            `dynamic="batch"` fits a step and a GradFn. Padding of weight zero (`loop.batches`,
            `loop.pad_batch`) is exact as well, and needs no symbol.
        backend: A torch.compile backend: `inductor`, or `aot_eager` to skip code generation.
        options: Settings of Inductor (names of `torch._inductor.config`), and `cudagraphs`: on
            CUDA, True replays all kernels of a call together. Donated leaves keep their addresses;
            the other arguments and the results are copied.
        debug: Run the plain function beside the compiled one for the first three calls, and name
            the first output that differs beyond rounding.

    Returns:
        The compiled function. Its attribute `traces` counts the graphs, and `explain_retrace()`
        says which argument made the last one necessary. `lower(*example).compile()` compiles ahead
        of time, and `.save(path)` of that writes the code to a file for `load_compiled`.

    Raises:
        TraceError: at the call, where the function looks at a tensor's value, writes into an
            argument, or captures a parameter.
        CompileError: at the call, with `debug`, where compiled and plain results differ.
        RandomnessError: at the call, where it draws from the global generator.
        DonationError: at the call, where a donated leaf shares its storage with another argument,
            or no output can take its place.

    >>> import torch
    >>> @jit(backend="aot_eager")
    ... def double(x):
    ...     return {"twice": x * 2}
    >>> double(torch.tensor([1.0, 2.0])), double.traces
    ({'twice': tensor([2., 4.])}, 1)
    """
    positions = (donate,) if isinstance(donate, int) else tuple(donate)

    def wrap(g: Callable[..., Any]) -> Jitted[..., Any]:
        constants, sizes = chosen(g, static, "static="), chosen(g, dynamic, "dynamic=")
        return Jitted(g, positions, constants, sizes, backend, options, debug)

    return wrap if f is None else wrap(f)
