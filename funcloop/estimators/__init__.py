"""Gradient estimators: functions from params, buffers, a batch and a key to an Estimate."""

from funcloop._remat import remat
from funcloop._types import Aux, Estimate, GradFn, LossFn
from funcloop.estimators._accumulate import accumulate
from funcloop.estimators._supervised import Criterion, accuracy, supervised
from funcloop.estimators._value_and_grad import value_and_grad

__all__ = [
    "Aux",
    "Criterion",
    "Estimate",
    "GradFn",
    "LossFn",
    "accumulate",
    "accuracy",
    "remat",
    "supervised",
    "value_and_grad",
]
