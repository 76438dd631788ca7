"""Mixed precision: dtype policies, and loss scales as values."""

from funcloop.precision._loss_scaled import LossScaled, Scaled, loss_scaled
from funcloop.precision._mixed import Mixed, mixed, mixed_loss
from funcloop.precision._policy import Autocast, Policy, Precision
from funcloop.precision._scale import Dynamic, LossScale, Static, dynamic, static

__all__ = [
    "Autocast",
    "Dynamic",
    "LossScale",
    "LossScaled",
    "Mixed",
    "Policy",
    "Precision",
    "Scaled",
    "Static",
    "dynamic",
    "loss_scaled",
    "mixed",
    "mixed_loss",
    "static",
]
