"""jit: trace a pure function once for each kind of arguments, compile the graph, and reuse it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

import torch
from torch import Tensor

from funcloop._compat import compile_graph, transforming
from funcloop._errors import ArgumentError, TraceError
from funcloop._pytree import Structure, flatten, paths_of, unflatten
from funcloop.compile._dispatch import Dispatch
from funcloop.compile._donation import (
    Donated,
    Lost,
    check_unaliased,
    fresh_alias,
    match_outputs,
    spend,
)
from funcloop.compile._graph import prepare
from funcloop.compile._signature import Static, as_leaves, signature
from funcloop.compile._straight import Builder, builder
from funcloop.compile._trace import trace

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(NamedTuple):
    """One graph, compiled, and how its flat results become the function's result.

    Attributes:
        call: Takes the tensor leaves, returns the outputs that are not donated.
        inputs: Places of the tensor leaves among all leaves.
        constants: Leaves of the result, None where a tensor goes.
        kept: Places in the result of what `call` returns.
        donated: Pairs (place among the leaves, place in the result).
        others: Places of the tensor leaves that are not donated.
        paths: The path of each donated leaf.
        captured: Tensors held as constants, each with the version that was traced.
        dispatch: Takes arguments of just this kind apart, quickly.
        build: Puts the result together.
    """

    call: Callable[..., Sequence[Tensor]]
    inputs: list[int]
    constants: list[Any]
    kept: list[int]
    donated: list[tuple[int, int]]
    others: list[int]
    paths: list[str]
    captured: list[tuple[Tensor, int]]
    dispatch: Dispatch
    build: Builder


class Jitted(Generic[P, R]):
    """A function and its compiled graphs; made by `jit`."""

    def __init__(
        self,
        f: Callable[P, R],
        donate: tuple[int, ...],
        static: tuple[int | str, ...],
        backend: str,
    ) -> None:
        functools.update_wrapper(self, f)
        self._f = f
        self._donate = donate
        self._static = static
        self._backend = backend
        self._graphs: dict[Hashable, Compiled] = {}
        self._last: Compiled | None = None

    @property
    def traces(self) -> int:
        """The number of graphs made so far."""
        return len(self._graphs)

    def __repr__(self) -> str:
        return f"jit({getattr(self._f, '__qualname__', self._f)}, traces={self.traces})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What `f(*args, **kwargs)` returns, by the graph for arguments of this kind."""
        if transforming():
            return self._f(*args, **kwargs)
        call = self._mark_static(args, kwargs)
        compiled = self._last
        leaves = None if compiled is None else compiled.dispatch(call)
        if compiled is None or leaves is None:
            leaves, structure = as_leaves(call)
            compiled = self._find(leaves, structure)
        return _run(compiled, leaves)

    def _find(self, leaves: Sequence[Any], structure: Structure | str) -> Compiled:
        key = signature(leaves, structure)
        compiled = self._graphs.get(key)
        if compiled is None:
            compiled = self._graphs[key] = self._compile(leaves, structure)
        self._last = compiled
        return compiled

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

    def _compile(self, leaves: Sequence[Any], structure: Structure | str) -> Compiled:
        traced = trace(self._call_unmarked, leaves, structure)
        donated = self._match_donated(unflatten(structure, leaves)[0], traced.fake_output)
        inputs = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        outputs = [o for o, constant in enumerate(traced.constants) if constant is None]
        flat = [(inputs.index(i), outputs.index(o)) for i, o in donated]
        kept = prepare(traced.graph, flat)
        given = {i for i, _ in donated}
        paths = paths_of(structure)
        return Compiled(
            call=compile_graph(traced.graph, traced.fakes, self._backend),
            inputs=inputs,
            constants=traced.constants,
            kept=[outputs[o] for o in kept],
            donated=donated,
            others=[i for i in inputs if i not in given],
            paths=[paths[i] for i, _ in donated],
            captured=[(tensor, tensor._version) for tensor in traced.captured],
            dispatch=Dispatch(leaves, structure),
            build=builder(traced.output),
        )

    def _match_donated(self, args: Sequence[Any], output: Any) -> list[tuple[int, int]]:
        """Pairs (place among the leaves, place in the result) of all donated arguments."""
        starts = [0]
        for arg in args:
            starts.append(starts[-1] + len(flatten(arg)[0]))
        pairs: list[tuple[int, int]] = []
        for number in self._donate:
            if number >= len(args):
                raise ArgumentError(
                    "donate= counts the positional arguments",
                    f"argument {number} of a call with {len(args)}",
                    "pass the donated argument by position",
                )
            taken = {o for _, o in pairs}
            found = match_outputs(args[number], output, taken)
            pairs += [(starts[number] + i, o) for i, o in found]
        return pairs


def _run(compiled: Compiled, leaves: Sequence[Any]) -> Any:
    for tensor, version in compiled.captured:
        if tensor._version != version:
            raise TraceError(
                "a tensor that a jitted function captures is a constant",
                f"a captured tensor of shape {tuple(tensor.shape)} was changed after tracing",
                "pass it as an argument",
            )
    donated = [leaves[i] for i, _ in compiled.donated]
    if donated:
        check_unaliased(donated, [leaves[i] for i in compiled.others], compiled.paths)
    result = list(compiled.constants)
    try:
        with torch.no_grad():
            outputs = compiled.call(*[leaves[i] for i in compiled.inputs])
            for place, output in zip(compiled.kept, outputs, strict=True):
                result[place] = output
            for i, place in compiled.donated:
                if result[place] is not None:  # it was not written inside the graph
                    leaves[i].copy_(result[place])
                result[place] = fresh_alias(leaves[i])
    except BaseException:
        spend(donated, Lost)
        raise
    spend(donated, Donated)
    return compiled.build(result)


@overload
def jit(
    f: Callable[P, R],
    *,
    donate: int | Sequence[int] = (),
    static: int | str | Sequence[int | str] = (),
    backend: str = "inductor",
) -> Jitted[P, R]: ...


@overload
def jit(
    *,
    donate: int | Sequence[int] = (),
    static: int | str | Sequence[int | str] = (),
    backend: str = "inductor",
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def jit(
    f: Callable[..., Any] | None = None,
    *,
    donate: int | Sequence[int] = (),
    static: int | str | Sequence[int | str] = (),
    backend: str = "inductor",
) -> Any:
    """Compile a pure function of pytrees; also a decorator.

    The function is traced once for each structure, shapes, strides, dtypes and devices of its
    arguments, with torch.func's transforms and custom autograd Functions resolved, and the one flat
    graph is then compiled. Python in it runs at trace time only. Under `torch.func` transforms, and
    inside another jitted function, the plain function runs.

    Args:
        f: The function. Python numbers among its arguments become 0-d tensors, so that another
            value does not re-trace; strings, bools, None and other hashable objects are constants
            of the graph.
        donate: Positions of arguments that may be overwritten. Each leaf keeps its storage and
            gets the value of the output subtree of the same structure; the tensors given raise
            when used again.
        static: Positions or names of arguments that are constants of the graph (hashable).
        backend: A torch.compile backend: `inductor`, or `aot_eager` to skip code generation.

    Returns:
        The compiled function; its attribute `traces` counts the graphs.

    Raises:
        TraceError: at the call, where the function looks at a tensor's value, writes into an
            argument, or captures a parameter.
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
    constants = (static,) if isinstance(static, (int, str)) else tuple(static)
    if f is None:
        return lambda g: Jitted(g, positions, constants, backend)
    return Jitted(f, positions, constants, backend)
