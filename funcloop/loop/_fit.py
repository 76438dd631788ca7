"""The training loop, written out once: it adds logging to two lines and owns nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from funcloop._errors import ArgumentError
from funcloop._types import Batch, Metrics, PyTree
from funcloop.checkpoint import Checkpoints
from funcloop.loop._epochs import Epochs, length
from funcloop.loop._journal import Journal
from funcloop.loop._progress import ProgressBar
from funcloop.loop._rank import is_first
from funcloop.loop._record import Position, Record
from funcloop.loop._run import Limits, Run
from funcloop.loop._run_folder import RunFolder
from funcloop.loop._saver import Saver, Start, take_up
from funcloop.loop._stopping import stopping

State = TypeVar("State")


class FitResult(NamedTuple):
    """What `fit` returns.

    Attributes:
        state: The state after the last step.
        history: The records, as in `metrics.jsonl`.
        position: Where the run stands; give it back to `fit` to go on from there.
    """

    state: Any  # a NamedTuple cannot be generic on Python 3.10
    history: list[Record]
    position: Position


def fit(
    state: State,
    step: Callable[[State, Any], tuple[State, Metrics]],
    data: Iterable[Batch] | Epochs,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    evaluate: Callable[[State], Mapping[str, float]] | None = None,
    position: Position = Position(),  # noqa: B008  # a NamedTuple of numbers
    checkpoints: Checkpoints | None = None,
    save_every: int | None = None,
    log_dir: str | Path | None = None,
    log_every: int = 10,
    config: Mapping[str, Any] | None = None,
    watch: Callable[[State], Mapping[str, PyTree]] | None = None,
    progress: bool = True,
) -> FitResult:
    """`for batch in data: state, metrics = step(state, batch)`, watched.

    Every `log_every` steps the metrics since the last record are averaged by weight into one
    record `{"step", "epoch", "time", "train/loss", ...}`; an evaluation, after each epoch and at
    the end, gives a record with `"val/..."`. `step` and `epoch` count what is done, `time` is in
    seconds since the run began. Between two records nothing waits for the device. Records of steps
    also say `examples_per_second`, `data_wait` (the share of the time in which the step stood still
    for want of data) and `memory_bytes` (the peak of CUDA's tensors, or of the process). In a
    distributed run ranks above 0 show and write nothing.

    With `checkpoints` a run goes on from the latest one in the folder, bit for bit as if it had
    never been cut: state, position, records, and the metrics that are in none yet. It saves after
    each epoch and at the end, with what the evaluation found, and at every `save_every`-th step
    between. Ctrl-C and SIGTERM then let the step end, save, and only then end the program (with
    KeyboardInterrupt and SystemExit, or by the handlers that were there); a second one ends it at
    once. The file holds `{"state": state, "run": ...}`: `checkpoints.restore(state, at="state")`.

    Args:
        state: Any state; a step that donates it uses it up.
        step: `(state, batch) -> (state, metrics)`, jitted or not, metrics 0-d by name. A metric
            `weight`, as `train_step` gives it, is the weight of the others.
        data: Iterated once an epoch: what `batches` returned, a DataLoader, a list.
        steps: Where to stop, in updates since the beginning of the run.
        epochs: Where to stop, in epochs since the beginning of the run; whichever comes first.
        evaluate: From a state to numbers by name, e.g. an `evaluator`.
        position: Where to start; that of an earlier result goes on from there, also in the middle
            of an epoch. Data without an `epoch` method or a KeyedSampler are read and thrown away
            up to it.
        checkpoints: Where to save, and to go on from; `state` is then the fresh one of a new run.
        save_every: Steps between two saves within an epoch.
        log_dir: A folder, made if missing, for `metrics.jsonl`, for TensorBoard where it is
            installed, and at the end for `curves.png` and `report.html`.
        log_every: Steps in a record.
        config: What the report is to say about the run: names and values, nested or not.
        watch: From the last state to trees by name whose histograms the report shows, e.g.
            `watch_gradients(grad_fn, batch)`; the params by default.
        progress: Show a progress bar, and one line for each evaluation.

    Returns:
        A FitResult: state, history, position.

    Raises:
        ArgumentError: there is no limit, a number of steps is less than one, the data ran out, or
            they are shuffled in a way that cannot be taken up (see `KeyedSampler`).
        StructureError: the state is not like the one in the checkpoint.
        CheckpointError, OSError: a checkpoint cannot be read or written.
        MissingExtraError: `progress` needs tqdm, `log_dir` matplotlib, `checkpoints` safetensors.

    >>> import torch
    >>> def step(total, x):
    ...     return total + x.sum(), {"loss": x.mean(), "weight": x.numel()}
    >>> data = [torch.tensor([1.0]), torch.tensor([3.0, 5.0])]
    >>> result = fit(torch.tensor(0.0), step, data, epochs=2, log_every=2, progress=False)
    >>> result.state, result.history[-1]["train/loss"], result.position
    (tensor(18.), 3.0, Position(step=4, epoch=2, batch=0))
    """
    _check(steps, epochs, log_every, save_every, checkpoints)
    start = take_up(checkpoints, Start(state, position, position.step), data)
    limits, first = Limits(steps, epochs), is_first()
    log_dir, progress = (log_dir, progress) if first else (None, False)
    bar = ProgressBar(_total(data, limits), start.position.step) if progress else None
    folder = None if log_dir is None else RunFolder(Path(log_dir), start, config)
    journal = Journal([sink for sink in (bar, folder) if sink is not None], log_every, start.notes)
    saver = Saver(checkpoints if first else None, save_every, journal, data)
    with stopping(checkpoints is not None) as stop:
        run = Run(start, step, evaluate, limits, journal, saver, bar, stop)
        try:
            run.train(data)
            trees = _watched(run.state) if watch is None else watch(run.state)  # on every rank
            if folder is not None:
                folder.keep_histograms(trees)
        finally:  # an interrupted run leaves its curves too
            journal.close()
    return FitResult(run.state, journal.history, run.position)


def _watched(state: object) -> dict[str, PyTree]:
    params = getattr(state, "params", None)
    return {} if params is None else {"weights": params}


def _total(data: object, limits: Limits) -> int | None:
    batches = length(data)
    if limits.epochs is None or batches is None:
        return limits.steps
    whole = limits.epochs * batches
    return whole if limits.steps is None else min(limits.steps, whole)


def _check(
    steps: int | None,
    epochs: int | None,
    log_every: int,
    save_every: int | None,
    checkpoints: Checkpoints | None,
) -> None:
    if steps is None and epochs is None:
        raise ArgumentError("a run ends somewhere", "neither steps nor epochs", "give one of them")
    if log_every < 1:
        raise ArgumentError(
            "a record holds at least one step", f"log_every {log_every}", "give a positive number"
        )
    if save_every is not None and (save_every < 1 or checkpoints is None):
        raise ArgumentError(
            "a run is saved into checkpoints, after a positive number of steps",
            f"save_every {save_every}, checkpoints {checkpoints}",
            "give both, or neither",
        )
