"""Sees how a forward uses its parameters: by a rule, through something computed, or otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode, resolve_name

from funcloop._compat import transform_depth
from funcloop._errors import UnsupportedError
from funcloop._pytree import flatten
from funcloop.persample._batch_norm import BATCH_NORMS, refuse_training
from funcloop.persample._piece import Piece, hide, moves
from funcloop.persample._recorded import Known, Recorded
from funcloop.persample._use import Rule, Use


class Recorder(TorchFunctionMode):
    """Notes every use of a parameter by a function that has a rule.

    Such a function is given the parameter's twin in its place. Whatever gradient then still reaches
    the parameter itself comes from uses that no rule explains, and autograd has computed it. So a
    use is never missed, whatever the forward does with the parameter.

    Args:
        params: The parameters as the forward has them.
        twins: The same values again.
        rules: The rules by function.
        names: What to call the parameters in a message.
        copies: Hand out copies of the layers' outputs, for a forward that writes into them.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        twins: Sequence[Tensor],
        rules: Mapping[Any, Rule],
        names: Sequence[str],
        copies: bool = False,
    ) -> None:
        super().__init__()
        self.recorded: list[Recorded] = []
        #: By parameter, the functions that used it without a rule.
        self.unexplained: dict[int, list[str]] = {}
        self._rules, self._names, self._copies = rules, names, copies
        self._depth = transform_depth()
        #: Whether autocast chose the dtypes of some call.
        self.autocast = False
        self._outputs: list[tuple[Tensor, int]] = []
        self._known = {
            id(tensor): Known(tensor, twin, Piece(leaf), tensor._version)
            for leaf, (tensor, twin) in enumerate(zip(params, twins, strict=True))
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self.autocast |= torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        if func in BATCH_NORMS:
            refuse_training(func, args, kwargs, self._path)
        tensors = [x for x in flatten((tuple(args), dict(kwargs)))[0] if isinstance(x, Tensor)]
        known = [self._find(x) for x in tensors]
        if not any(known):
            return func(*args, **kwargs)
        # Inside a transform of the loss function's own, a gradient would arrive at another level.
        if self._rules and transform_depth() == self._depth:
            if all(known):
                return self._compute(func, args, kwargs)
            bound = self._bind(func, args, kwargs)
            uses = self._uses(func, bound) if bound else []
            if bound and uses:
                return self._call(func, bound, uses)
        for one in known:
            self._note_unexplained(one, func)
        return func(*args, **kwargs)

    def _path(self, tensor: Any) -> str | None:
        """The path of a parameter."""
        known = self._find(tensor)
        return None if known is None else self._names[known.piece.leaves()[0]]

    def refuse_overwritten(self) -> None:
        """Raises UnsupportedError where a layer's input was written over after the layer ran."""
        for use in self.recorded:
            if any(t._version != v for t, v in zip(use.saved, use.versions, strict=True)):
                raise UnsupportedError(
                    "the input of a layer is needed for the layer's gradient",
                    f"an input of {use.function} was changed in place after the call",
                    "use the out-of-place operation",
                )

    def output_overwritten(self) -> bool:
        """Whether the forward wrote into the output of a layer.

        Where the output is a view of what the layer computed, as of `F.linear` with a bias,
        autograd then leaves out the node at which its gradient was to arrive.
        """
        return any(output._version != version for output, version in self._outputs)

    def _find(self, tensor: Any) -> Known | None:
        known = self._known.get(id(tensor))
        return known if known is not None and known.tensor._version == known.version else None

    def _bind(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> inspect.BoundArguments | None:
        """The arguments by the names of the function's rule; None where it has no rule for them."""
        rule = self._rules.get(func)
        if rule is None:
            return None
        try:
            return inspect.signature(rule).bind(*args, **kwargs)
        except TypeError:  # an argument that the rule does not know, such as out=
            return None

    def _uses(
        self, func: Callable[..., Any], bound: inspect.BoundArguments
    ) -> list[tuple[str, Known, Use]]:
        """The arguments that are parameters and that the rule explains, each with its Use."""
        uses = []
        for name, use in self._rules[func](*bound.args, **bound.kwargs).items():
            known = self._find(bound.arguments.get(name))
            if known is not None and not known.tensor.is_complex():
                uses.append((name, known, use))
        return uses

    def _call(
        self,
        func: Callable[..., Any],
        bound: inspect.BoundArguments,
        uses: list[tuple[str, Known, Use]],
    ) -> Tensor:
        explained = {name for name, _, _ in uses}
        for name, value in bound.arguments.items():
            if name not in explained:
                self._note_unexplained(self._find(value), func)
        for name, known, _ in uses:
            bound.arguments[name] = known.twin
        output = func(*bound.args, **bound.kwargs)
        if not isinstance(output, Tensor):
            raise UnsupportedError(
                "a rule is for a function that returns one tensor",
                f"{name_of(func)} returned a {type(output).__name__}",
                "register no rule for it",
            )
        if output.requires_grad:  # not under no_grad
            output = output.clone() if self._copies else output
            self._outputs.append((output, output._version))
            edge = get_gradient_edge(output)
            for _, known, use in uses:
                versions = tuple(t._version for t in use.saved)
                self.recorded.append(
                    Recorded(known.piece, edge, use.saved, versions, use.factor, name_of(func))
                )
        return output

    def _compute(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function of parameters alone, and know its results from now on."""
        output = func(*args, **kwargs)
        results = list(output) if isinstance(output, (tuple, list)) else [output]
        if not any(isinstance(x, Tensor) and x.requires_grad for x in results):
            return output
        pieces: list[Piece] = []

        def piece_of(x: Any) -> Any:
            known = self._find(x) if isinstance(x, Tensor) else None
            if known is None:
                return x
            pieces.append(known.piece)
            return known.piece

        hidden_args, hidden_kwargs = hide(tuple(args), dict(kwargs), piece_of)
        if len(pieces) == 0 or any(r is a for r in results for a in _tensors(args, kwargs)):
            return output  # written in place, or handed through
        twins = func(*self._twins(args), **self._twins(kwargs))
        twin_list = list(twins) if isinstance(twins, (tuple, list)) else [twins]
        for place, (result, twin) in enumerate(zip(results, twin_list, strict=True)):
            if isinstance(result, Tensor) and result.requires_grad:
                single = not isinstance(output, (tuple, list))
                piece = Piece(
                    None,
                    func,
                    hidden_args,
                    hidden_kwargs,
                    None if single else place,
                    moves(func, pieces),
                )
                self._known[id(result)] = Known(result, twin, piece, result._version)
        return output

    def _twins(self, tree: Any) -> Any:
        def twin(x: Any) -> Any:
            known = self._find(x) if isinstance(x, Tensor) else None
            return x if known is None else known.twin

        return hide(tree, {}, twin)[0]

    def _note_unexplained(self, known: Known | None, func: Callable[..., Any]) -> None:
        if known is not None:
            for leaf in known.piece.leaves():
                self.unexplained.setdefault(leaf, []).append(name_of(func))


def name_of(func: Callable[..., Any]) -> str:
    """The public name of a torch function."""
    return resolve_name(func) or getattr(func, "__name__", repr(func))


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    return [x for x in flatten((tuple(args), dict(kwargs)))[0] if isinstance(x, Tensor)]
