"""The toolkit over the custom Functions that ship with torch's own test suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.autograd_function_db import autograd_function_db

from funcloop.testing import CheckFailed, check_function

#: Left out for all of them.
JVP_TWICE = {"jvp(jvp)": "torch 2.13 switches forward mode off inside a Function's jvp"}
#: Left out for those that a trace cannot look into.
NUMPY = {"jit": "calls NumPy"}
#: Those that are no derivative of their forward, on purpose, and what they are a derivative of.
SURROGATES: dict[str, Callable[..., Any]] = {
    "ScaleGradGenVmap": lambda x: 3.14 * x,
    "ZeroGradientsGenVmap": lambda x, y: (0 * x, 0 * y),
}
#: Those with a fault, and the checks that find it.
FAULTS: dict[str, set[str]] = {
    # backward adds `6 * dinput` instead of `6 * grad_saved * x`
    "CubeGenVmap": {"gradcheck", "gradgradcheck", "jvp", "linear"},
    # forward returns x as it came, with the indices that would sort it
    "NumpySort": {"gradcheck"},
    # keeps an array on ctx, is once_differentiable, ignores its gradient, has no jvp and no vmap
    "NumpyCubeNotComposable": {
        *("gradcheck", "gradgradcheck", "save", "jvp", "linear"),
        *("vmap", "vmap(grad)", "grad(vmap)", "jvp(vmap)", "empty"),
    },
}


@pytest.mark.parametrize("info", autograd_function_db, ids=lambda info: info.name)
def test_function(info):
    name = info.name.removesuffix("AutogradFunction")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs = list(info.sample_inputs("cpu", torch.float32, requires_grad=False))
    samples = [(sample.input, *sample.args) for sample in inputs]
    skip = {**JVP_TWICE, **(NUMPY if name.startswith("Numpy") else {})}
    try:
        check_function(info.op, samples, surrogate=SURROGATES.get(name), skip=skip)
        failed: set[str] = set()
    except CheckFailed as error:
        failed = set(error.report.failed)
    assert failed == FAULTS.get(name, set())
