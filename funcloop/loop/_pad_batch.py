"""A batch filled up to a size, so that a smaller one needs no graph of its own."""

from __future__ import annotations

import torch

from funcloop import tree
from funcloop._errors import ShapeError
from funcloop._types import Batch
from funcloop.loop._batches import with_entries


def pad_batch(batch: Batch, pad_to: int) -> Batch:
    """The batch with its examples repeated up to `pad_to` of them, and their weights added.

    The repeated ones weigh zero, so every weighted mean, gradient and metric is exactly that of the
    batch given, while a jitted step sees one shape. The weight, (pad_to,), stands where `batches`
    puts it: last in a tuple or list, under "weight" in a dict. Statistics over the batch
    (BatchNorm) do see the repeated examples.

    Args:
        batch: Tree of tensors of shape (B, ...), such as a DataLoader gives.
        pad_to: Examples of the result, at least B.

    Raises:
        ShapeError: the leading dimensions differ, are zero, or exceed `pad_to`.
        StructureError: a dict has a "weight" already.

    >>> x, y, weight = pad_batch((torch.tensor([1.0, 2.0]), torch.tensor([0, 1])), 3)
    >>> x, y, weight
    (tensor([1., 2., 1.]), tensor([0, 1, 0]), tensor([1., 1., 0.]))
    """
    sizes = {path: leaf.shape[:1] for path, leaf in tree.items(batch)}
    found = {size[0] if size else 0 for size in sizes.values()}
    if len(found) != 1 or not 0 < max(found) <= pad_to:
        raise ShapeError(
            "a batch has one number of examples in all leaves, from one up to what it is padded to",
            f"leading dimensions {[tuple(size) for size in sizes.values()]} for pad_to={pad_to}",
            "give shape (B, ...) everywhere, and the largest B as pad_to",
        )
    (examples,) = found
    rows = torch.arange(pad_to)
    filled = tree.map(lambda leaf: leaf[(rows % examples).to(leaf.device)], batch)
    weight = (rows < examples).float().to(tree.leaves(batch)[0].device)
    return with_entries(filled, weight=weight)
