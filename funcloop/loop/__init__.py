"""The everyday loop: batches by a key, `fit`, progress, records and curves. Optional sugar."""

from funcloop.loop import metrics
from funcloop.loop._batches import Batches, batches
from funcloop.loop._epochs import Epochs
from funcloop.loop._evaluator import evaluator
from funcloop.loop._fit import FitResult, fit
from funcloop.loop._histograms import watch_gradients
from funcloop.loop._image_folder import ImageFolder
from funcloop.loop._jsonl import read_records
from funcloop.loop._keyed_sampler import KeyedSampler
from funcloop.loop._lr_finder import RateSweep, lr_finder
from funcloop.loop._overfit import overfit_batch
from funcloop.loop._pad import pad, pad_collate
from funcloop.loop._pad_batch import pad_batch
from funcloop.loop._plot import plot_curves
from funcloop.loop._plot_sweep import plot_sweep
from funcloop.loop._prefetch import Prefetched, prefetch
from funcloop.loop._record import Position
from funcloop.loop._report import report
from funcloop.loop._seed import seed_everything

__all__ = [
    "Batches",
    "Epochs",
    "FitResult",
    "ImageFolder",
    "KeyedSampler",
    "Position",
    "Prefetched",
    "RateSweep",
    "batches",
    "evaluator",
    "fit",
    "lr_finder",
    "metrics",
    "overfit_batch",
    "pad",
    "pad_batch",
    "pad_collate",
    "plot_curves",
    "plot_sweep",
    "prefetch",
    "read_records",
    "report",
    "seed_everything",
    "watch_gradients",
]
