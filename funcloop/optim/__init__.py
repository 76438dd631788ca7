"""Optimizers as transforms: PyTorch's numerics, Optax's algebra, pure functions."""

from funcloop.optim._accumulate import AccumulateState, accumulate
from funcloop.optim._adadelta import AdadeltaState, adadelta, scale_by_adadelta
from funcloop.optim._adafactor import FactoredState, adafactor, scale_by_factored_rms
from funcloop.optim._adagrad import AdagradState, adagrad, scale_by_adagrad
from funcloop.optim._adam import AdamState, adam, adamw, scale_by_adam
from funcloop.optim._adamax import AdamaxState, adamax, scale_by_adamax
from funcloop.optim._adan import AdanState, adan, scale_by_adan
from funcloop.optim._adaptive_clip import adaptive_grad_clip
from funcloop.optim._amsgrad import AmsgradState, scale_by_amsgrad
from funcloop.optim._apply import apply_updates
from funcloop.optim._apply_if import ApplyIfState, apply_if, apply_if_finite
from funcloop.optim._asgd import AsgdState, asgd, asgd_average
from funcloop.optim._average import EmaState, PolyakState, averaged_params, ema, polyak_average
from funcloop.optim._block import clip_by_block_rms, scale_by_param_rms, scale_by_trust_ratio
from funcloop.optim._chain import chain
from funcloop.optim._clip import ClipState, clip_by_global_norm, clip_by_value
from funcloop.optim._decay import DecayState, add_decayed_weights
from funcloop.optim._extra import with_extra
from funcloop.optim._freeze import freeze
from funcloop.optim._inject import InjectState, inject_hyperparams
from funcloop.optim._lamb import lamb
from funcloop.optim._lars import lars
from funcloop.optim._learning_rate import learning_rate
from funcloop.optim._lion import LionState, lion, scale_by_lion
from funcloop.optim._lookahead import LookaheadState, lookahead
from funcloop.optim._master_weights import MasterState, master_weights
from funcloop.optim._monitor import MonitorState, monitor
from funcloop.optim._muon import MuonState, muon, orthogonalize, scale_by_muon
from funcloop.optim._nadam import NadamState, nadam, scale_by_nadam
from funcloop.optim._named_chain import named_chain
from funcloop.optim._noise import NoiseState, add_noise
from funcloop.optim._normalize import centralize, normalize
from funcloop.optim._partition import masked, partition
from funcloop.optim._plateau import PlateauState, reduce_on_plateau
from funcloop.optim._prodigy import ProdigyState, prodigy
from funcloop.optim._project import keep_in_ball, keep_non_negative, keep_on_simplex, project
from funcloop.optim._radam import radam, scale_by_radam
from funcloop.optim._rmsprop import (
    RmsState,
    StddevState,
    rmsprop,
    scale_by_rms,
    scale_by_stddev,
)
from funcloop.optim._rprop import RpropState, rprop
from funcloop.optim._scale import (
    LearningRateState,
    ScaleByScheduleState,
    scale,
    scale_by_learning_rate,
    scale_by_schedule,
)
from funcloop.optim._schedule_free import (
    ScheduleFreeState,
    schedule_free,
    schedule_free_adamw,
    schedule_free_eval_params,
    schedule_free_sgd,
)
from funcloop.optim._sgd import sgd
from funcloop.optim._stateless import stateless, stateless_with_params
from funcloop.optim._torch_state import from_torch, to_torch
from funcloop.optim._trace import TraceState, trace
from funcloop.optim._zero_nans import ZeroNansState, zero_nans

__all__ = [
    "AccumulateState",
    "AdadeltaState",
    "AdagradState",
    "AdamState",
    "AdamaxState",
    "AdanState",
    "AmsgradState",
    "ApplyIfState",
    "AsgdState",
    "ClipState",
    "DecayState",
    "EmaState",
    "FactoredState",
    "InjectState",
    "LearningRateState",
    "LionState",
    "LookaheadState",
    "MasterState",
    "MonitorState",
    "MuonState",
    "NadamState",
    "NoiseState",
    "PlateauState",
    "PolyakState",
    "ProdigyState",
    "RmsState",
    "RpropState",
    "ScaleByScheduleState",
    "ScheduleFreeState",
    "StddevState",
    "TraceState",
    "ZeroNansState",
    "accumulate",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "adan",
    "adaptive_grad_clip",
    "add_decayed_weights",
    "add_noise",
    "apply_if",
    "apply_if_finite",
    "apply_updates",
    "asgd",
    "asgd_average",
    "averaged_params",
    "centralize",
    "chain",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "clip_by_value",
    "ema",
    "freeze",
    "from_torch",
    "inject_hyperparams",
    "keep_in_ball",
    "keep_non_negative",
    "keep_on_simplex",
    "lamb",
    "lars",
    "learning_rate",
    "lion",
    "lookahead",
    "masked",
    "master_weights",
    "monitor",
    "muon",
    "nadam",
    "named_chain",
    "normalize",
    "orthogonalize",
    "partition",
    "polyak_average",
    "prodigy",
    "project",
    "radam",
    "reduce_on_plateau",
    "rmsprop",
    "rprop",
    "scale",
    "scale_by_adadelta",
    "scale_by_adagrad",
    "scale_by_adam",
    "scale_by_adamax",
    "scale_by_adan",
    "scale_by_amsgrad",
    "scale_by_factored_rms",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_muon",
    "scale_by_nadam",
    "scale_by_param_rms",
    "scale_by_radam",
    "scale_by_rms",
    "scale_by_schedule",
    "scale_by_stddev",
    "scale_by_trust_ratio",
    "schedule_free",
    "schedule_free_adamw",
    "schedule_free_eval_params",
    "schedule_free_sgd",
    "sgd",
    "stateless",
    "stateless_with_params",
    "to_torch",
    "trace",
    "with_extra",
    "zero_nans",
]
