"""The torch functions that a forward does not call as they are, each with its rule."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from funcloop._compat import OPERATORS, PACK, PAD
from funcloop.stateless._attention import attention, python_function
from funcloop.stateless._bilinear import bilinear
from funcloop.stateless._embedding import embedding, embedding_bag
from funcloop.stateless._normalization import batch_norm, functional_batch_norm, instance_norm
from funcloop.stateless._packed import pack, pad
from funcloop.stateless._recurrent import (
    cell_rule,
    gru_step,
    layers_rule,
    lstm_step,
    relu_step,
    tanh_step,
)
from funcloop.stateless._writes import Rule, note_every, note_first, note_operator, writers


class Rules(dict[Any, "Rule | None"]):
    """Rules by function; None for a function that runs as it is, noted when it is first seen."""

    def __missing__(self, function: Any) -> Rule | None:
        rule = self[function] = note_operator if type(function) in OPERATORS else None
        return rule


RULES = Rules(dict.fromkeys(writers(), note_first))
RULES.update(
    {
        torch.fused_moving_avg_obs_fake_quant: note_every,
        F.batch_norm: functional_batch_norm,
        torch.batch_norm: batch_norm,
        torch.native_batch_norm: batch_norm,
        F.instance_norm: instance_norm,
        F.embedding: embedding,
        F.embedding_bag: embedding_bag,
        F.bilinear: bilinear,
        F.scaled_dot_product_attention: attention,
        F.multi_head_attention_forward: python_function,
        PACK: pack,
        PAD: pad,
        torch.lstm: layers_rule(lstm_step),
        torch.gru: layers_rule(gru_step),
        torch.rnn_tanh: layers_rule(tanh_step),
        torch.rnn_relu: layers_rule(relu_step),
        torch.lstm_cell: cell_rule(lstm_step),
        torch.gru_cell: cell_rule(gru_step),
        torch.rnn_tanh_cell: cell_rule(tanh_step),
        torch.rnn_relu_cell: cell_rule(relu_step),
    }
)
