"""Pure steps: from a TrainState and a batch to the next TrainState and its metrics."""

from funcloop.step._eval_step import eval_step
from funcloop.step._state import TrainState
from funcloop.step._train_step import train_step

__all__ = ["TrainState", "eval_step", "train_step"]
