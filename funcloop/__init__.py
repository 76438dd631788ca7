"""funcloop: the functional training library for PyTorch."""

from funcloop import (
    compile,
    estimators,
    loop,
    meta,
    ops,
    optim,
    persample,
    privacy,
    random,
    schedules,
    step,
    testing,
    tree,
)
from funcloop._errors import FuncloopError
from funcloop._types import Aux, Estimate, GradFn, LossFn, Schedule, Transform
from funcloop.compile import jit
from funcloop.estimators import supervised, value_and_grad
from funcloop.stateless import Stateless, stateless
from funcloop.step import TrainState, eval_step, train_step

__version__ = "0.1.0"

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
    "compile",
    "estimators",
    "eval_step",
    "jit",
    "loop",
    "meta",
    "ops",
    "optim",
    "persample",
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
