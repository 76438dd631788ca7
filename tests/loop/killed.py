"""A training program that is killed again and again; run by test_kill.py in a process of its own.

torch is imported once: every life of the program is a fork of this process, which computes nothing
itself, since a fork does not survive a parent that has threads of autograd.

python killed.py FOLDER KILLS_WITH_BATCHES KILLS_WITH_A_LOADER
"""

from __future__ import annotations

import importlib
import json
import os
import random as chance
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import funcloop as fl
from funcloop.loop import _run_folder
from funcloop.loop._meter import MEASURED

EXAMPLES, BATCH, STEPS = 40, 4, 60
#: What a life would import at its first step, in seconds; torch.func.grad imports the second.
IMPORTS = ("matplotlib", "torch._dynamo", "safetensors.torch")


def data(kind: str) -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, 4, generator=generator)
    y = torch.randint(3, (EXAMPLES,), generator=generator)
    if kind == "batches":
        return fl.loop.batches(fl.random.key(1), (x, y), BATCH)
    sampler = fl.loop.KeyedSampler(fl.random.key(1), EXAMPLES)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, sampler=sampler, num_workers=2)


def train(folder: Path, kind: str, steps: int = STEPS, save_every: int | None = 1) -> None:
    """The whole program: dropout, momentum, accumulation over windows that epochs cut."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    model = fl.stateless(net)
    params, buffers = model.init(fl.random.key(2))
    buffers["ballast"] = torch.arange(500_000.0)  # so that a save takes its time
    tx = fl.optim.accumulate(fl.optim.sgd(fl.schedules.cosine(0.1, STEPS), momentum=0.9), 3)
    loss_fn = fl.supervised(model, F.cross_entropy)

    def carried(params, held, batch, key):
        ballast = held["ballast"]
        rest = {name: x for name, x in held.items() if name != "ballast"}
        losses, aux = loss_fn(params, rest, batch, key)
        return losses, aux._replace(buffers={**aux.buffers, "ballast": ballast})

    state = fl.TrainState.create(params, buffers, tx, key=fl.random.key(3))
    # Pictures and TensorBoard take longer than the run, and are no part of its state.
    _run_folder.plot_curves = _run_folder.report = lambda *_: None
    _run_folder.is_installed = lambda: False
    fl.loop.fit(
        *(state, fl.train_step(fl.value_and_grad(carried), tx), data(kind)),
        steps=steps,
        evaluate=lambda state: {"norm": float(fl.tree.norm(state.params))},
        checkpoints=fl.checkpoint.Checkpoints(folder / "kept", keep_best="-val/norm"),
        save_every=save_every,
        log_dir=folder,
        log_every=7,
        progress=False,
    )


def life(folder: Path, kind: str, seconds: float | None, **options: Any) -> bool:
    """One life of the program, killed after so many seconds; whether it came to its end."""
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(folder, kind, **options)
            status = 0
        except BaseException:
            (folder / "error.txt").write_text(traceback.format_exc())
        finally:
            os._exit(status)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status):
        raise SystemExit((folder / "error.txt").read_text())
    return True


def outcome(folder: Path) -> tuple[Any, list[dict[str, float]]]:
    state = fl.checkpoint.Checkpoints(folder / "kept").restore(at="state")
    records = fl.loop.read_records(folder / "metrics.jsonl")
    return state, [{k: v for k, v in record.items() if k not in MEASURED} for record in records]


def kill(folder: Path, kind: str, kills: int) -> dict[str, int]:
    """Kill so many times, in as many runs as that takes, and compare each with a whole one."""
    life(folder / "whole", kind, None, save_every=None)
    want, records = outcome(folder / "whole")
    began = time.perf_counter()
    life(folder / "short", kind, None, steps=3)
    longest = 1.4 * (time.perf_counter() - began)
    done, halves, runs, places = 0, 0, 0, set()
    while done < kills:
        runs += 1
        run, step = folder / str(runs), 0
        while done < kills and not life(run, kind, chance.uniform(0, longest)):
            done += 1
            halves += any(run.glob("**/.funcloop-*"))
            before, step = step, max(fl.checkpoint.Checkpoints(run / "kept").steps(), default=0)
            places.add((runs, step))
            longest *= 1.1 if step == before else 0.94  # a busy machine needs longer lives
        life(run, kind, None)
        got, lines = outcome(run)
        leaves = dict(fl.tree.items(want))
        for path, leaf in fl.tree.items(got):
            assert torch.equal(leaf, leaves[path]), path
        assert lines == records
        assert not list(run.glob("**/.funcloop-*"))
    return {"kills": done, "in_saves": halves, "runs": runs, "places": len(places)}


def main(folder: Path, *kills: int) -> None:
    torch.set_num_threads(1)
    chance.seed(0)
    for name in IMPORTS:
        importlib.import_module(name)
    report = {}
    for kind, number in zip(("batches", "loader"), kills, strict=True):
        (folder / kind).mkdir()
        report[kind] = kill(folder / kind, kind, number)
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
