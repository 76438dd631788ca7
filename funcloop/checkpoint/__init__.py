"""Any tree in one file, whole or not at all; the latest and the best of a run; foreign files."""

from funcloop.checkpoint._checkpoints import Checkpoints
from funcloop.checkpoint._load_torch import Loaded, load_torch
from funcloop.checkpoint._restore import restore
from funcloop.checkpoint._save import save

__all__ = ["Checkpoints", "Loaded", "load_torch", "restore", "save"]
