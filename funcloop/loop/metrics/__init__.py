"""Streaming metrics: exact sums of each batch that add up, and numbers made of them at the end."""

from funcloop.loop.metrics._classes import accuracy, top_k
from funcloop.loop.metrics._confusion import Average, Confusion, confusion
from funcloop.loop.metrics._mean import Mean, loss, mae, mean
from funcloop.loop.metrics._perplexity import Perplexity, perplexity
from funcloop.loop.metrics._r2 import R2, r2
from funcloop.loop.metrics._rmse import RMSE, rmse
from funcloop.loop.metrics._scores import Metric, Scores, Sums, score_step

__all__ = [
    "R2",
    "RMSE",
    "Average",
    "Confusion",
    "Mean",
    "Metric",
    "Perplexity",
    "Scores",
    "Sums",
    "accuracy",
    "confusion",
    "loss",
    "mae",
    "mean",
    "perplexity",
    "r2",
    "rmse",
    "score_step",
    "top_k",
]
