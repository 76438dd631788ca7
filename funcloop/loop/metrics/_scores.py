"""Many metrics over one batch, as one value that adds up over batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from funcloop import random
from funcloop._purity import no_outer_graph
from funcloop._types import Batch, Model
from funcloop.step import TrainState


class Sums(Protocol):
    """What a metric keeps of a batch: a NamedTuple of tensors, a commutative monoid."""

    def combine(self, other: Any, /) -> Any:
        """The sums of the examples of both."""
        ...

    def compute(self) -> Tensor | Mapping[str, Tensor]:
        """The number, or several by name."""
        ...


class Metric(Protocol):
    """`(output, target, weight) -> Sums`, a pure function of one batch."""

    def __call__(self, output: Tensor, target: Tensor, weight: Tensor | None, /) -> Sums: ...


class Scores(NamedTuple):
    """The sums of several metrics, by name; a pytree, so it passes through `jit` and `vmap`.

    Attributes:
        sums: By name, what each metric keeps.
    """

    sums: dict[str, Any]

    def combine(self, other: Scores) -> Scores:
        """The scores of the examples of both; the order never matters but for rounding."""
        return Scores({name: mine.combine(other.sums[name]) for name, mine in self.sums.items()})

    def compute(self) -> dict[str, Tensor]:
        """Each metric by its name; one that gives several numbers as `name/number`."""
        numbers: dict[str, Tensor] = {}
        for name, sums in self.sums.items():
            value = sums.compute()
            if isinstance(value, Mapping):
                numbers.update({f"{name}/{part}": v for part, v in value.items()})
            else:
                numbers[name] = value
        return numbers


def score_step(
    model: Model, metrics: Mapping[str, Metric]
) -> Callable[[TrainState, Batch], Scores]:
    """The pure step `(TrainState, batch) -> Scores` of a model in evaluation mode.

    Give it to `evaluator`, jitted or not, or join the scores of batches by `combine`; `compute`
    then makes the numbers. They do not depend on how the data were cut into batches, and examples
    of weight zero (padding) never contribute, also not a NaN.

    Where outputs and targets are not simply those of a batch (a mask of tokens, a decoder), write
    the step yourself: a function of state and batch that returns
    `Scores({"perplexity": perplexity(logits, tokens, mask), ...})`.

    Args:
        model: What `stateless(net)` returned.
        metrics: By name; the functions of this package, or any `(output, target, weight) -> Sums`.

    Returns:
        The step. A batch is `(input, target)` or `(input, target, weight)`, as for `supervised`.

    >>> import torch, torch.nn.functional as F
    >>> from funcloop import optim
    >>> from funcloop.loop import batches, evaluator, metrics
    >>> from funcloop.stateless import stateless
    >>> model = stateless(torch.nn.Linear(2, 3))
    >>> state = TrainState.create(*model.init(), optim.sgd(0.1), key=random.key(0))
    >>> score = score_step(model, {
    ...     "loss": metrics.loss(F.cross_entropy), "top2": metrics.top_k(2),
    ...     "classes": metrics.confusion})
    >>> data = batches(None, (torch.ones(5, 2), torch.tensor([0, 1, 2, 0, 1])), 2)
    >>> list(evaluator(score, data)(state))[:4]
    ['loss', 'top2', 'classes/accuracy', 'classes/precision_macro']
    """

    def score(state: TrainState, batch: Batch) -> Scores:
        inputs, target, weight = batch if len(batch) == 3 else (*batch, None)
        with no_outer_graph():
            key = random.fold_in(state.key, state.step)
            output, _ = model.apply(state.params, state.buffers, inputs, key=key, train=False)
            return Scores(
                {name: metric(output, target, weight) for name, metric in metrics.items()}
            )

    return score
