"""Models and loss functions that compute in low precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from funcloop import tree
from funcloop._loss import evaluate_loss
from funcloop._types import Aux, Batch, Buffers, Key, LossFn, Model, Params
from funcloop.precision._policy import Precision, cast_tensors

Leaves = dict[str, Tensor]


class Mixed:
    """What `mixed(model, policy)` returns: a Model, with what else the model has."""

    def __init__(self, model: Model, policy: Precision) -> None:
        self._model, self._policy = model, policy

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_model":  # copying asks before there is a model
            raise AttributeError(name)
        return getattr(self._model, name)  # freeze, thaw, merge, names, paths

    def init(self, key: Key | None = None) -> tuple[Leaves, Leaves]:
        """The model's params in the policy's `params`, and its buffers as they are."""
        params, buffers = self._model.init(key)
        return cast_tensors(params, self._policy.params), buffers

    def apply(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        /,
        *args: Any,
        key: Key | None = None,
        train: bool | Mapping[str, bool],
        **kwargs: Any,
    ) -> tuple[Any, Leaves]:
        """The model's output in the policy's `output`, and the buffers in their own dtypes.

        Args:
            params: Leaves by name, in any dtype; they are cast.
            buffers: Leaves by name.
            *args: As for the model; floating tensors are cast.
            key: As for the model.
            train: As for the model.
            **kwargs: As for the model; floating tensors are cast.
        """
        policy = self._policy
        args, kwargs = policy.inputs((args, kwargs))
        low, context = policy.enter(dict(params))
        with context:
            output, after = self._model.apply(low, buffers, *args, key=key, train=train, **kwargs)
        return cast_tensors(output, policy.output), _as_given(buffers, after)

    def __repr__(self) -> str:
        return f"mixed({self._model!r}, {self._policy!r})"


def mixed(model: Model, policy: Precision) -> Mixed:
    """A model that computes in low precision; what it takes and returns stays in float32.

    The casts stand at the model's border: params and inputs are cast on the way in, the output on
    the way out, so a loss computed from it is computed in float32. Inside, norm layers run in
    float32 too; `Policy` says what else. Buffers keep their dtypes, and frozen parameters among
    them are cast where they are used.

    Params in less than float32 stop moving once the updates are smaller than their spacing: keep
    them in float32, or give the optimizer copies by `optim.master_weights`.

    Args:
        model: What `stateless(net)` returned, or another Model.
        policy: `Policy("params=float32,compute=bfloat16,output=float32")`, or `Autocast(...)`.

    Returns:
        A Model; its other methods (`freeze`, `thaw`, `merge`) are those of the model.

    >>> import torch
    >>> from funcloop.precision import Policy
    >>> from funcloop.stateless import stateless
    >>> seen = torch.nn.Linear(2, 1)
    >>> model = mixed(stateless(seen), Policy("compute=bfloat16"))
    >>> params, buffers = model.init()
    >>> output, _ = model.apply(params, buffers, torch.ones(3, 2), train=True)
    >>> params["weight"].dtype, output.dtype
    (torch.float32, torch.float32)
    """
    return Mixed(model, policy)


def mixed_loss(loss_fn: LossFn, policy: Precision) -> LossFn:
    """A LossFn that computes in low precision: for pure functions without a `mixed` model.

    Params are cast on the way in, losses and metrics on the way out. The batch is not cast, since
    it also holds targets and weights; products cast what they take of it. The losses of
    `torch.nn.functional` run in float32, while a loss written by hand runs in the dtype of its
    arguments; around a model, `mixed` leaves the whole loss in float32.

    Args:
        loss_fn: Any LossFn.
        policy: As for `mixed`.

    >>> import torch
    >>> from funcloop.precision import Policy
    >>> loss_fn = mixed_loss(lambda params, buffers, x, key: x @ params, Policy("compute=bfloat16"))
    >>> loss_fn(torch.tensor([1.0, 257.0]), {}, torch.eye(2), None)[0]  # 257 needs nine bits
    tensor([  1., 256.])
    """

    def low(params: Params, buffers: Buffers, batch: Batch, key: Key) -> tuple[Tensor, Aux]:
        cast, context = policy.enter(params)
        with context:
            losses, aux = evaluate_loss(loss_fn, cast, buffers, batch, key)
        metrics = cast_tensors(dict(aux.metrics), policy.output)
        after = _as_given(buffers, aux.buffers)
        return losses.to(policy.output), aux._replace(buffers=after, metrics=metrics)

    return low


def _as_given(buffers: Buffers, after: Buffers) -> Buffers:
    """The new buffers in the dtypes of the given ones, where they are the same tree."""
    if tree.structure(buffers) != tree.structure(after):
        return after
    return tree.map(lambda old, new: new.to(old.dtype), buffers, after)
