"""Optimizers as transforms: PyTorch's numerics, Optax's algebra, pure functions."""

from funcloop.optim._adam import AdamState, adam, adamw, scale_by_adam
from funcloop.optim._apply import apply_updates
from funcloop.optim._chain import chain
from funcloop.optim._clip import ClipState, clip_by_global_norm
from funcloop.optim._decay import add_decayed_weights
from funcloop.optim._extra import with_extra
from funcloop.optim._learning_rate import learning_rate
from funcloop.optim._scale import scale, scale_by_learning_rate, scale_by_schedule
from funcloop.optim._sgd import sgd
from funcloop.optim._stateless import stateless, stateless_with_params
from funcloop.optim._trace import TraceState, trace

__all__ = [
    "AdamState",
    "ClipState",
    "TraceState",
    "adam",
    "adamw",
    "add_decayed_weights",
    "apply_updates",
    "chain",
    "clip_by_global_norm",
    "learning_rate",
    "scale",
    "scale_by_adam",
    "scale_by_learning_rate",
    "scale_by_schedule",
    "sgd",
    "stateless",
    "stateless_with_params",
    "trace",
    "with_extra",
]
