"""The confusion matrix, and precision, recall and F1 made of it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop.loop.metrics._classes import check_scores, only_known
from funcloop.loop.metrics._weighted import spread, weight_for

#: Unweighted mean over the classes that occur; over all decisions; mean weighted by how often a
#: class is true; None for one number a class.
Average: TypeAlias = Literal["macro", "micro", "weighted"] | None


class Confusion(NamedTuple):
    """How much weight of each true class was taken for each class.

    Numbers are scikit-learn's with its defaults: zero where nothing was to be divided, and classes
    that are neither true nor predicted anywhere stay out of the macro average.

    Attributes:
        matrix: Shape (C, C) float64: row true class, column predicted class.
    """

    matrix: Tensor

    def combine(self, other: Confusion) -> Confusion:
        """The matrix of both."""
        return Confusion(self.matrix + other.matrix)

    def precision(self, average: Average = "macro") -> Tensor:
        """The share of a predicted class that is truly of it."""
        return self._average(self._right(), self._predicted(), average)

    def recall(self, average: Average = "macro") -> Tensor:
        """The share of a true class that is predicted as it."""
        return self._average(self._right(), self._true(), average)

    def f1(self, average: Average = "macro") -> Tensor:
        """The harmonic mean of precision and recall."""
        return self._average(2 * self._right(), self._predicted() + self._true(), average)

    def compute(self) -> dict[str, Tensor]:
        """Accuracy, which micro averages and the weighted recall equal, and the other averages."""
        return {
            "accuracy": self._right().sum(-1) / self.matrix.sum((-2, -1)),
            "precision_macro": self.precision("macro"),
            "precision_weighted": self.precision("weighted"),
            "recall_macro": self.recall("macro"),
            "f1_macro": self.f1("macro"),
            "f1_weighted": self.f1("weighted"),
        }

    def _right(self) -> Tensor:
        return self.matrix.diagonal(dim1=-2, dim2=-1)

    def _true(self) -> Tensor:
        return self.matrix.sum(-1)

    def _predicted(self) -> Tensor:
        return self.matrix.sum(-2)

    def _average(self, above: Tensor, below: Tensor, average: Average) -> Tensor:
        each = _ratio(above, below)
        if average is None:
            return each
        if average == "micro":
            return _ratio(above.sum(-1), below.sum(-1))
        if average == "macro":
            occurs = (self._true() + self._predicted() != 0).double()
            return _ratio((each * occurs).sum(-1), occurs.sum(-1))
        if average == "weighted":
            return _ratio((each * self._true()).sum(-1), self._true().sum(-1))
        raise ArgumentError(
            "an average is one of macro, micro, weighted, or None", f"{average!r}", "choose one"
        )


def confusion(output: Tensor, target: Tensor, weight: Tensor | None = None) -> Confusion:
    """The weighted confusion matrix of a batch.

    Args:
        output: Scores, shape (..., C); the highest is the predicted class.
        target: Class indices, shape (...). One outside 0..C-1 with a weight makes everything NaN.
        weight: Of the target's leading dimensions; ones by default.

    Raises:
        ShapeError: the target has another shape than the scores without their last dimension.

    >>> import torch
    >>> scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]])
    >>> sums = confusion(scores, torch.tensor([0, 1, 0]))
    >>> sums.matrix
    tensor([[1., 1.],
            [0., 1.]], dtype=torch.float64)
    >>> sums.f1(None)
    tensor([0.6667, 0.6667], dtype=torch.float64)
    """
    check_scores(output, target)
    weight = weight_for(target, weight)
    known = only_known(torch.ones_like(target), target, output)  # NaN for what is no class
    mass = spread(weight, target)
    mass = torch.where(mass == 0, 0, mass * known).reshape(-1, 1)
    classes = torch.arange(output.shape[-1], device=output.device)
    true = (target.reshape(-1, 1) == classes).double() * mass
    predicted = (output.argmax(-1).reshape(-1, 1) == classes).double()
    # A product of one-hot rows and no scatter: the same sums in the same order on every device.
    return Confusion(true.T @ predicted)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below == 0, 0, above / torch.where(below == 0, 1, below))
