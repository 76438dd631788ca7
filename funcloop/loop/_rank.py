"""Which of several processes speaks for all."""

from __future__ import annotations

import torch.distributed


def is_first() -> bool:
    """Whether this is rank 0, or a process of its own; the other ranks write and show nothing."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or (
        distributed.get_rank() == 0
    )
