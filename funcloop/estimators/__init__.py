"""Gradient estimators: functions from params, buffers, a batch and a key to an Estimate."""

from funcloop._types import Aux, Estimate, GradFn, LossFn
from funcloop.estimators._supervised import Criterion, accuracy, supervised
from funcloop.estimators._value_and_grad import value_and_grad

__all__ = [
    "Aux",
    "Criterion",
    "Estimate",
    "GradFn",
    "LossFn",
    "accuracy",
    "supervised",
    "value_and_grad",
]
