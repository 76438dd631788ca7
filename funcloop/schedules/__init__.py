"""Schedules: a hyperparameter as a pure function of the update count."""

from funcloop.schedules._constant import constant
from funcloop.schedules._cosine import cosine
from funcloop.schedules._warmup_cosine import warmup_cosine

__all__ = ["constant", "cosine", "warmup_cosine"]
