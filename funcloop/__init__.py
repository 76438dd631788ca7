"""funcloop: the functional training library for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from funcloop import (
    compile,
    estimators,
    loop,
    optim,
    precision,
    random,
    schedules,
    step,
    tree,
)
from funcloop._errors import FuncloopError
from funcloop._types import Aux, Estimate, GradFn, LossFn, Schedule, Transform
from funcloop._version import VERSION
from funcloop.compile import jit
from funcloop.estimators import accumulate, supervised, value_and_grad
from funcloop.stateless import Stateless, stateless
from funcloop.step import TrainState, eval_step, train_step

if TYPE_CHECKING:
    from funcloop import checkpoint, meta, ops, persample, privacy, testing

__version__ = VERSION

__all__ = [
    "Aux",
    "Estimate",
    "FuncloopError",
    "GradFn",
    "LossFn",
    "Schedule",
    "Stateless",
    "TrainState",
    "Transform",
    "accumulate",
    "checkpoint",
    "compile",
    "estimators",
    "eval_step",
    "jit",
    "loop",
    "meta",
    "ops",
    "optim",
    "persample",
    "precision",
    "privacy",
    "random",
    "schedules",
    "stateless",
    "step",
    "supervised",
    "testing",
    "train_step",
    "tree",
    "value_and_grad",
]


def __getattr__(name: str) -> Any:
    """Packages that a plain training run has no need of are imported when they are first named.

    Together they took more than half of the import time.
    """
    if name in __all__:
        return import_module(f"funcloop.{name}")
    raise AttributeError(f"module 'funcloop' has no attribute {name!r}")
