"""The whole state of a training run, as one value."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._types import Buffers, Key, OptState, Params, PyTree, Transform


class TrainState(NamedTuple):
    """What a step maps to its successor; a pytree.

    Attributes:
        step: The number of steps done, 0-d int64.
        params: The trainable tensors.
        buffers: Running statistics and frozen parameters.
        opt_state: The optimizer's state.
        key: The run's key, shape (2,); step `n` draws from `fold_in(key, n)`.
        loss_scale: A loss scale where one is used (`precision.dynamic()`), otherwise ().
    """

    step: Tensor
    params: Params
    buffers: Buffers
    opt_state: OptState
    key: Key
    loss_scale: PyTree = ()

    @classmethod
    def create(
        cls,
        params: Params,
        buffers: Buffers,
        tx: Transform,
        *,
        key: Key,
        loss_scale: PyTree = (),
    ) -> TrainState:
        """The state before the first step.

        The tensors are copied, so that donating the state never overwrites the caller's.

        >>> import torch
        >>> from funcloop import optim, random
        >>> state = TrainState.create({"w": torch.ones(2)}, {}, optim.sgd(0.1), key=random.key(0))
        >>> state.step, state.params
        (tensor(0), {'w': tensor([1., 1.])})
        """
        leaves = tree.leaves(params)
        device = leaves[0].device if leaves else key.device
        step = torch.zeros((), dtype=torch.int64, device=device)
        loss_scale = tree.map(lambda x: x.to(device), loss_scale)
        state = cls(step, params, buffers, tx.init(params), key.to(device), loss_scale)
        # Transforms may keep the params themselves (a slow copy), and a donated leaf stands once.
        return tree.map(lambda x: x.detach().clone(), state)
