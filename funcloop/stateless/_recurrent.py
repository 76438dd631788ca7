"""LSTM, GRU and RNN in plain operators, equal to torch's, where torch's own cannot be used.

That is under vmap (torch has no batching rule for them), under forward-mode and higher derivatives,
and with dropout between the layers, which has to come from the key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from funcloop._compat import lacks_rules, transforming
from funcloop.stateless._writes import Function, Rule, Watcher

#: What a cell carries from step to step, each (B, H): (h,), or (h, c) for an LSTM.
State: TypeAlias = tuple[Tensor, ...]
#: `(x, state, weights) -> state` for one step.
Cell: TypeAlias = Callable[[Tensor, State, "Weights"], State]
#: w_ih, w_hh, b_ih, b_hh and, for a projecting LSTM, w_hr; None where there is none.
Weights: TypeAlias = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


def lstm_step(x: Tensor, state: State, weights: Weights) -> State:
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    h, c = state
    gates = F.linear(x, w_ih, b_ih) + F.linear(h, w_hh, b_hh)
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if w_hr is None else F.linear(h, w_hr)), c


def gru_step(x: Tensor, state: State, weights: Weights) -> State:
    w_ih, w_hh, b_ih, b_hh, _ = weights
    (h,) = state
    r_x, z_x, n_x = F.linear(x, w_ih, b_ih).chunk(3, -1)
    r_h, z_h, n_h = F.linear(h, w_hh, b_hh).chunk(3, -1)
    z = (z_x + z_h).sigmoid()
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    return ((h - n) * z + n,)


def tanh_step(x: Tensor, state: State, weights: Weights) -> State:
    w_ih, w_hh, b_ih, b_hh, _ = weights
    return ((F.linear(x, w_ih, b_ih) + F.linear(state[0], w_hh, b_hh)).tanh(),)


def relu_step(x: Tensor, state: State, weights: Weights) -> State:
    w_ih, w_hh, b_ih, b_hh, _ = weights
    return ((F.linear(x, w_ih, b_ih) + F.linear(state[0], w_hh, b_hh)).relu(),)


def layers_rule(cell: Cell) -> Rule:
    """The rule of `torch.lstm`, `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu`."""

    def rule(guard: Watcher, func: Function, /, *args: Any, **kwargs: Any) -> Any:
        packed = isinstance(args[3], (list, tuple))  # then (data, batch_sizes, hx, params, ...)
        given = args[3:] if packed else args[2:]
        params, has_biases, num_layers, dropout, train, bidirectional, *rest = given
        hx = args[2] if packed else args[1]
        state = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        dropped = dropout > 0 and train and num_layers > 1
        plain = dropped or (packed and transforming()) or lacks_rules((args[0], *state, *params))
        if not plain:
            return guard.proceed(func, *args, **kwargs)
        batch_first = bool(rest and rest[0])
        steps = _packed_steps(*args[:2]) if packed else [*args[0].unbind(int(batch_first))]
        weights = _weights(params, has_biases, len(params) // (num_layers * (1 + bidirectional)))
        with guard:  # dropout is taken from the key
            steps, state = _layers(cell, steps, state, weights, bidirectional, dropout, train)
        output = torch.cat(steps) if packed else torch.stack(steps, int(batch_first))
        return output, *state

    return rule


def cell_rule(cell: Cell) -> Rule:
    """The rule of `torch.lstm_cell`, `torch.gru_cell`, `torch.rnn_tanh_cell` and its like."""

    def rule(
        guard: Watcher,
        func: Function,
        /,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        state = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        if not lacks_rules((input, *state, w_ih, w_hh)):
            return guard.proceed(func, input, hx, w_ih, w_hh, b_ih, b_hh)
        after = cell(input, state, (w_ih, w_hh, b_ih, b_hh, None))
        return after if isinstance(hx, (list, tuple)) else after[0]

    return rule


def _packed_steps(data: Tensor, batch_sizes: Tensor) -> list[Tensor]:
    return list(data.split(batch_sizes.tolist()))  # lengths are Python's, also in torch's own code


def _weights(params: Sequence[Tensor], has_biases: bool, each: int) -> list[Weights]:
    """The weights of each layer and direction, from torch's flat list."""
    groups = [list(params[i : i + each]) for i in range(0, len(params), each)]
    biases = 2 if has_biases else 0
    return [
        (
            g[0],
            g[1],
            g[2] if biases else None,
            g[3] if biases else None,
            g[2 + biases] if each > 2 + biases else None,
        )
        for g in groups
    ]


def _layers(
    cell: Cell,
    steps: list[Tensor],
    state: State,
    weights: list[Weights],
    bidirectional: bool,
    dropout: float,
    train: bool,
) -> tuple[list[Tensor], State]:
    """All layers; the states are stacked, one for each layer and direction."""
    directions = 2 if bidirectional else 1
    finals: list[State] = []
    for first in range(0, len(weights), directions):
        if first and dropout > 0 and train:
            rows = [x.shape[0] for x in steps]
            steps = [*F.dropout(torch.cat(steps), dropout).split(rows)]
        sides = []
        for n in range(first, first + directions):
            backward = n > first
            order = steps[::-1] if backward else steps
            outputs, final = _run(cell, order, tuple(s[n] for s in state), weights[n])
            sides.append(outputs[::-1] if backward else outputs)
            finals.append(final)
        steps = [torch.cat(both, -1) for both in zip(*sides, strict=True)]
    return steps, tuple(torch.stack(parts) for parts in zip(*finals, strict=True))


def _run(
    cell: Cell, steps: Sequence[Tensor], state: State, weights: Weights
) -> tuple[list[Tensor], State]:
    """One direction of one layer; a step may have fewer rows than the state (packed sequences)."""
    outputs = []
    for x in steps:
        rows = x.shape[0]
        after = cell(x, tuple(s[:rows] for s in state), weights)
        outputs.append(after[0])
        rest = [s[rows:] for s in state]
        state = tuple(torch.cat(two) for two in zip(after, rest, strict=True))
    return outputs, state
