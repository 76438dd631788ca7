"""Differentially private training: DP-SGD, Poisson batches, accounting, validation."""

from funcloop.privacy._accountant import Accountant
from funcloop.privacy._accounting import calibrate_noise, epsilon, sampling_probability
from funcloop.privacy._adaptive import AdaptiveNorm, adaptive_norm
from funcloop.privacy._dp_sgd import DPSGD, Private, dp_sgd
from funcloop.privacy._noise import gaussian_noise
from funcloop.privacy._noised import noised
from funcloop.privacy._poisson import PoissonBatch, PoissonBatches, PoissonData, poisson_batches
from funcloop.privacy._validate import Finding, validate

__all__ = [
    "DPSGD",
    "Accountant",
    "AdaptiveNorm",
    "Finding",
    "PoissonBatch",
    "PoissonBatches",
    "PoissonData",
    "Private",
    "adaptive_norm",
    "calibrate_noise",
    "dp_sgd",
    "epsilon",
    "gaussian_noise",
    "noised",
    "poisson_batches",
    "sampling_probability",
    "validate",
]
