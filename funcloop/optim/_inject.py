"""Hyperparameters held in the state, where they can be read and edited between steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._extra import with_extra
from funcloop.optim._hyper import as_tensor, value_at, zero_count


class InjectState(NamedTuple):
    """State of `inject_hyperparams`.

    Attributes:
        step: Updates so far, int64, 0-d.
        hyperparams: The numbers by argument name, 0-d tensors (in tuples, where the argument is
            one); edit them with `_replace` or `tree.at`.
        inner: State of the inner transform.
    """

    step: Tensor
    hyperparams: dict[str, Any]
    inner: OptState


def inject_hyperparams(factory: Callable[..., Transform]) -> Callable[..., Transform]:
    """A factory whose transforms keep their numbers as tensors in the state.

    Numbers, tensors and schedules become entries of `state.hyperparams`, where the factory's
    annotation of the argument admits a tensor (or where it has none); flags, names, masks and
    counts stay as they are. A schedule is evaluated at every update
    and overwrites its entry; the others keep what is written there. As part of a jitted or vmapped
    state they neither re-trace nor have to be equal over members.

    Args:
        factory: For instance `optim.adamw`.

    >>> import torch
    >>> from funcloop.optim import sgd
    >>> tx, params = inject_hyperparams(sgd)(lr=0.1), {"w": torch.tensor(1.0)}
    >>> state = tx.init(params)
    >>> state.hyperparams["lr"] = torch.tensor(0.5)
    >>> tx.update({"w": torch.tensor(1.0)}, state, params)[0]
    {'w': tensor(-0.5000)}
    """

    def build(*args: Any, **kwargs: Any) -> Transform:
        numbers, fixed = _split(factory, *args, **kwargs)

        def at(step: Tensor, held: dict[str, Any] | None) -> dict[str, Any]:
            if held is None:
                return tree.map(lambda h: as_tensor(value_at(h, step), step), numbers)
            return tree.map(lambda h, old: h(step) if callable(h) else old, numbers, held)

        def init(params: Params, /) -> OptState:
            step = zero_count(params)
            hyperparams = at(step, None)
            return InjectState(step, hyperparams, factory(**hyperparams, **fixed).init(params))

        def update(
            updates: PyTree, state: InjectState, params: Params, /, **extra: Any
        ) -> tuple[PyTree, OptState]:
            hyperparams = at(state.step, state.hyperparams)
            tx = with_extra(factory(**hyperparams, **fixed))
            updates, new_inner = tx.update(updates, state.inner, params, **extra)
            return updates, InjectState(state.step + 1, hyperparams, new_inner)

        return Transform(init, update)

    return build


def _split(factory: Callable[..., Transform], *args: Any, **kwargs: Any) -> tuple[dict, dict]:
    """The arguments that are hyperparameters, by name, and the others; defaults included."""
    signature = inspect.signature(factory)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    numbers, fixed = {}, {}
    for name, value in bound.arguments.items():
        annotation = signature.parameters[name].annotation
        held = _takes_tensors(annotation) and _is_number(value)
        (numbers if held else fixed)[name] = value
    return numbers, fixed


def _takes_tensors(annotation: Any) -> bool:
    """Whether an argument may be a tensor; one without annotation may."""
    return annotation is inspect.Parameter.empty or any(
        word in str(annotation) for word in ("Hyper", "Tensor", "Schedule")
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(_is_number(item) for item in value)
    number = isinstance(value, (int, float, Tensor)) and not isinstance(value, bool)
    return number or callable(value)
