"""A module as a pure function of its parameters and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from funcloop._types import Key
from funcloop.stateless import _partition
from funcloop.stateless._apply import Apply
from funcloop.stateless._init import drawn_leaves, own_leaves
from funcloop.stateless._merge import merge
from funcloop.stateless._pattern import Pattern
from funcloop.stateless._plan import make_plan
from funcloop.stateless._train import Train, training_flags

Leaves = dict[str, Tensor]


class Stateless:
    """What `stateless(net)` returns: `init`, `apply`, and what goes with them.

    Attributes:
        paths: The path of every module, the root first as `""`; patterns of `train=` match these.
        names: The qualified name of every parameter; patterns of `freeze` match these.
    """

    __slots__ = ("_allowed", "_apply", "_flags", "_plan", "names", "paths")

    def __init__(self, net: nn.Module, allow_hidden: Pattern) -> None:
        self._allowed = allow_hidden
        self._plan = plan = make_plan(net, allow_hidden)
        self._flags: dict[Any, tuple[bool, ...]] = {}
        self._apply = Apply(plan)
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
        output, after = self._apply(values, self._training(train), key, args, kwargs)
        return output, {**buffers, **after}

    def _training(self, train: Train) -> tuple[bool, ...]:
        key = tuple(train.items()) if isinstance(train, Mapping) else train
        flags = self._flags.get(key)
        if flags is None:
            flags = self._flags[key] = training_flags(train, self.paths)
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

    def __reduce__(self) -> tuple[Any, ...]:
        return Stateless, (self._plan.net, self._allowed)  # the plan points into the module

    def __repr__(self) -> str:
        plan = self._plan
        trainable = [p.numel() for p in plan.parameters.values() if p.requires_grad]
        frozen = len(plan.parameters) - len(trainable)
        return (
            f"stateless({type(plan.net).__name__}: {len(trainable)} params "
            f"with {sum(trainable):,} elements, {frozen} frozen, {len(plan.buffers)} buffers)"
        )


def stateless(net: nn.Module, *, allow_hidden: Pattern = ()) -> Stateless:
    """Turn a module into a pure function of its parameters and buffers.

    The module is looked through once, and is never changed: after any call, also one that raises,
    it holds the identical tensors. It is shared, not copied, so what runs is its forward with its
    forward hooks; attributes that the forward assigns are put back, and are the same at every call.

    Compiled modules (`torch.compile`), `DataParallel` and `DistributedDataParallel` are looked
    through at any depth, and names carry no prefix of theirs. A ScriptModule is refused.
    Checkpointed blocks (`torch.utils.checkpoint`) run as plain calls, and torch's attention leaves
    its inference-only fast path. Sparse embedding gradients become dense.

    Under the transforms of torch.func, recurrent nets, attention, embedding bags and bilinear
    layers run in plain operators, equal to torch's own, where those have no rule. A norm in
    training mode under vmap needs running statistics of each member.

    Calls of one module from several threads wait for each other.

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
    return Stateless(net, allow_hidden)
