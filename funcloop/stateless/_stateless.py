"""A module as a pure function of its parameters and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from funcloop._compat import plain_modules
from funcloop._pytree import tree_map
from funcloop._types import Key
from funcloop.stateless import _partition
from funcloop.stateless._explain import explain
from funcloop.stateless._guard import ArgumentWritten, Guard
from funcloop.stateless._init import drawn_leaves, own_leaves
from funcloop.stateless._merge import merge
from funcloop.stateless._pattern import Pattern
from funcloop.stateless._plan import Plan, make_plan
from funcloop.stateless._swap import Swapped
from funcloop.stateless._train import Train, training_flags

Leaves = dict[str, Tensor]


class Stateless:
    """What `stateless(net)` returns: `init`, `apply`, and what goes with them.

    Attributes:
        paths: The path of every module, the root first as `""`; patterns of `train=` match these.
        names: The qualified name of every parameter; patterns of `freeze` match these.
    """

    __slots__ = ("_flags", "_plan", "_writes_arguments", "names", "paths")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._flags: dict[Any, tuple[bool, ...]] = {}
        self._writes_arguments = False
        self.paths = plan.paths
        self.names = tuple(plan.parameters)

    def init(self, key: Key | None = None) -> tuple[Leaves, Leaves]:
        """Params and buffers: the module's own, or drawn anew from a key.

        Trainable parameters are the params. Buffers are the module's buffers and its frozen
        parameters (`requires_grad=False`). A tied tensor appears once, under its first name.

        Args:
            key: None copies the module's tensors. A key of shape (2,) draws every parameter by
                the `reset_parameters` of the module that owns it; keys of shape (N, 2) give
                stacked leaves of shape (N, ...).

        Returns:
            Two flat dicts by qualified name, detached, sharing no memory with the module.

        Raises:
            UnsupportedError: with a key: a module owns parameters and has no `reset_parameters`.

        >>> import torch
        >>> params, buffers = stateless(torch.nn.BatchNorm1d(2)).init()
        >>> list(params), list(buffers)
        (['weight', 'bias'], ['running_mean', 'running_var', 'num_batches_tracked'])
        """
        return own_leaves(self._plan) if key is None else drawn_leaves(self._plan, key)

    def apply(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        /,
        *args: Any,
        key: Key | None = None,
        train: Train,
        **kwargs: Any,
    ) -> tuple[Any, Leaves]:
        """The module's output for these params and buffers, and the buffers afterwards.

        Nothing is changed: not the tensors given, not the module, not the global generator. Every
        random number of the forward comes from `key`.

        Args:
            params: Leaves by name; together with `buffers` exactly those of `init()`.
            buffers: Leaves by name.
            *args: What the forward takes.
            key: Key of shape (2,). None where the forward draws nothing.
            train: True or False for every module; or a mapping of path patterns to bools, of which
                the first that matches decides: `{"backbone": False, "": True}`. The module's own
                `training` is not read.
            **kwargs: What the forward takes by keyword; its own `key` or `train` only by position.

        Returns:
            The output, and new buffers in the order of those given. A buffer that was not written
            is the tensor that was given.

        Raises:
            StructureError: names are missing or unknown, or a pattern of `train` is idle.
            RandomnessError: the forward draws a random number and `key` is None.
            UnsupportedError: the forward writes a parameter, or cannot be transformed as asked.
            HiddenStateError: the forward writes a plain attribute.

        >>> import torch
        >>> model = stateless(torch.nn.BatchNorm1d(2))
        >>> params, buffers = model.init()
        >>> _, after = model.apply(params, buffers, torch.ones(4, 2), train=True)
        >>> buffers["running_mean"], after["running_mean"]
        (tensor([0., 0.]), tensor([0.1000, 0.1000]))
        """
        values = self._plan.match(params, buffers)
        flags = self._training(train)
        if not self._writes_arguments:
            try:
                return self._call(values, buffers, flags, key, args, kwargs, (args, kwargs))
            except ArgumentWritten:  # nothing has happened yet, and from now on it is known
                self._writes_arguments = True
        args, kwargs = tree_map(_copy, (args, kwargs))
        return self._call(values, buffers, flags, key, args, kwargs, ())

    def _call(
        self,
        values: Leaves,
        buffers: Mapping[str, Tensor],
        flags: tuple[bool, ...],
        key: Key | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        watched: Any,
    ) -> tuple[Any, Leaves]:
        plan = self._plan
        fresh = {name: values[name].clone() for name in plan.changeable(values)}
        guard = Guard(key, values, fresh, watched, plan)
        with Swapped(plan, {**values, **fresh}, flags) as module:
            try:
                with plain_modules(), guard:
                    output = plan.net(*args, **kwargs)
            except Exception as error:
                refusal = explain(error, plan.module_names)
                if refusal is None:
                    raise
                raise refusal from error
            guard.settle()
            after = module.buffers_after(fresh, guard.written, guard.rebound)
        return output, {**buffers, **after}

    def _training(self, train: Train) -> tuple[bool, ...]:
        known = train if isinstance(train, bool) else None
        flags = None if known is None else self._flags.get(known)
        if flags is None:
            flags = training_flags(train, self.paths)
            if known is not None:
                self._flags[known] = flags
        return flags

    def freeze(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], pattern: Pattern
    ) -> tuple[Leaves, Leaves]:
        """Move parameters to the buffers, where no gradient, decay or clipping sees them.

        Args:
            params: Leaves by name.
            buffers: Leaves by name.
            pattern: One shell pattern over qualified names, or several. A pattern also takes what
                lies below the module it names, and `*` crosses dots.

        Returns:
            New params and new buffers; the tensors are the same.

        Raises:
            StructureError: a pattern matches no parameter among the params.

        >>> import torch
        >>> model = stateless(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)))
        >>> params, buffers = model.freeze(*model.init(), "0")
        >>> list(params), list(buffers)
        (['1.weight', '1.bias'], ['0.weight', '0.bias'])
        """
        return _partition.freeze(self.names, params, buffers, pattern)

    def thaw(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], pattern: Pattern
    ) -> tuple[Leaves, Leaves]:
        """Move frozen parameters from the buffers to the params, in the module's order.

        Buffers proper, such as running statistics, never move.

        Args:
            params: Leaves by name.
            buffers: Leaves by name.
            pattern: As in `freeze`.

        Returns:
            New params and new buffers; the tensors are the same.

        Raises:
            StructureError: a pattern matches no parameter among the buffers.
        """
        return _partition.thaw(self.names, params, buffers, pattern)

    def merge(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> nn.Module:
        """A fresh module that holds copies of these tensors, to save, export or hand on.

        Ties are kept, wrappers are left out, and a parameter requires a gradient where its leaf is
        among the params. The module that `stateless` was given is untouched.

        Raises:
            StructureError: names are missing or unknown.

        >>> import torch
        >>> model = stateless(torch.nn.Linear(2, 1))
        >>> params, buffers = model.init()
        >>> net = model.merge({name: torch.zeros_like(p) for name, p in params.items()}, buffers)
        >>> net(torch.ones(1, 2))
        tensor([[0.]], grad_fn=<AddmmBackward0>)
        """
        return merge(self._plan, params, buffers)

    def __repr__(self) -> str:
        plan = self._plan
        trainable = [p.numel() for p in plan.parameters.values() if p.requires_grad]
        frozen = len(plan.parameters) - len(trainable)
        return (
            f"stateless({type(plan.net).__name__}: {len(trainable)} params "
            f"with {sum(trainable):,} elements, {frozen} frozen, {len(plan.buffers)} buffers)"
        )


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def stateless(net: nn.Module, *, allow_hidden: Pattern = ()) -> Stateless:
    """Turn a module into a pure function of its parameters and buffers.

    The module is looked through once, and is never changed: after any call, also one that raises,
    it holds the identical tensors. It is shared, not copied, so what runs is its forward with its
    forward hooks; attributes that the forward assigns are put back, and are the same at every call.

    Compiled modules (`torch.compile`), `DataParallel` and `DistributedDataParallel` are looked
    through at any depth, and names carry no prefix of theirs. A ScriptModule is refused.
    Checkpointed blocks (`torch.utils.checkpoint`) run as plain calls, and torch's attention leaves
    its inference-only fast path.

    Args:
        net: Any module that is finished: later changes of its layers are refused.
        allow_hidden: Patterns of attribute paths whose hidden state is meant, and stays a constant.

    Returns:
        The model: `init`, `apply`, `freeze`, `thaw`, `merge`.

    Raises:
        HiddenStateError: parameters or modules are held in plain containers, attributes, closures
            or globals; leaves overlap in memory; a lazy module has not been initialised.
        UnsupportedError: a ScriptModule or a sharded module, or backward hooks.

    >>> import torch
    >>> model = stateless(torch.nn.Linear(3, 2))
    >>> model
    stateless(Linear: 2 params with 8 elements, 0 frozen, 0 buffers)
    >>> params, buffers = model.init()
    >>> output, buffers = model.apply(params, buffers, torch.ones(5, 3), train=True)
    >>> output.shape
    torch.Size([5, 2])
    """
    return Stateless(make_plan(net, allow_hidden))
