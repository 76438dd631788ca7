"""Where the graph of plain autograd is cut."""

from __future__ import annotations

import contextlib

import torch

from funcloop._compat import differentiating


def no_outer_graph() -> contextlib.AbstractContextManager[None]:
    """Results carry no autograd graph, unless a torch.func transform is differentiating.

    A pure step fed with live `nn.Parameter`s would otherwise chain the graphs of all steps. Inside
    `torch.func.grad` (meta-learning, implicit differentiation) everything stays differentiable.
    """
    return contextlib.nullcontext() if differentiating() else torch.no_grad()
