"""Schedules: a hyperparameter as a pure function of the update count."""

from funcloop.schedules._constant import constant
from funcloop.schedules._cosine import cosine
from funcloop.schedules._cosine_restarts import cosine_restarts
from funcloop.schedules._exponential import exponential
from funcloop.schedules._inverse_sqrt import inverse_sqrt
from funcloop.schedules._join import join
from funcloop.schedules._linear import linear, polynomial
from funcloop.schedules._onecycle import onecycle
from funcloop.schedules._piecewise import multistep, piecewise, step
from funcloop.schedules._warmup_cosine import warmup_cosine
from funcloop.schedules._wsd import wsd

__all__ = [
    "constant",
    "cosine",
    "cosine_restarts",
    "exponential",
    "inverse_sqrt",
    "join",
    "linear",
    "multistep",
    "onecycle",
    "piecewise",
    "polynomial",
    "step",
    "warmup_cosine",
    "wsd",
]
