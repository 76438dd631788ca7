"""A function as one graph of plain operators, traced with fake tensors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._python_dispatch as torch_dispatch
from torch import Tensor

if TYPE_CHECKING:
    from torch.fx import GraphModule


class MutatedInput(Exception):
    """The traced function wrote into its argument number `place`."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


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


def untraced() -> contextlib.AbstractContextManager[Any]:
    """Inside: operators run at once, on real tensors, whatever tracer is watching.

    Why private: `make_fx` has no public way to step aside. What is computed here is a constant of
    the graph; without it, even `detach()` would put the live parameter into the graph.
    """
    return torch_dispatch._disable_current_modes()
