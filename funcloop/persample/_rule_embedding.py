"""Rules of the embeddings; `embedding_bag` reaches them as plain embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from funcloop.persample._factor import Factor
from funcloop.persample._rows import Rows
from funcloop.persample._use import Use, register_rule


@register_rule(F.embedding)
def functional_embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Mapping[str, Use]:
    if max_norm is not None:
        return {}
    return embedding(
        weight, input, -1 if padding_idx is None else padding_idx % len(weight), scale_grad_by_freq
    )


@register_rule(torch.embedding)
def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Mapping[str, Use]:
    if scale_grad_by_freq or weight.ndim != 2:  # autograd divides by how often a row is used
        return {}
    shape = weight.shape

    def factor(grad: Tensor, indices: Tensor) -> Factor:
        index = indices.reshape(indices.shape[0], -1)
        values = grad.reshape(*index.shape, -1)
        if padding_idx >= 0:
            values = torch.where((index == padding_idx)[:, :, None], 0, values)
        return Rows(index, values, shape)

    return {"weight": Use((indices,), factor)}
