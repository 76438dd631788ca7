"""The torch functions that a forward does not call as they are, each with its rule."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from funcloop._compat import OPERATORS
from funcloop.stateless._normalization import batch_norm, functional_batch_norm, instance_norm
from funcloop.stateless._writes import Rule, note_every, note_first, note_operator, writers


class Rules(dict[Any, "Rule | None"]):
    """Rules by function; None for a function that runs as it is, noted when it is first seen."""

    def __missing__(self, function: Any) -> Rule | None:
        rule = self[function] = note_operator if type(function) in OPERATORS else None
        return rule


RULES = Rules(
    {
        **dict.fromkeys(writers(), note_first),
        torch.fused_moving_avg_obs_fake_quant: note_every,
        F.batch_norm: functional_batch_norm,
        torch.batch_norm: batch_norm,
        F.instance_norm: instance_norm,
    }
)
