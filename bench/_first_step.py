"""Seconds of a process's first step beyond imports: `python -m bench._first_step WAY WORKLOAD`.

WAY is `jit`, `dynamo` (torch.compile on the same step), `jax`, `save:PATH` (compile ahead of time
into a package), `load:PATH` (continue from it), or `nothing`, whose process costs the imports only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch  # noqa: F401  # imports are not part of the measure

import funcloop as fl
from bench import _workloads
from funcloop.compile import load_compiled


def first_step(way: str, name: str) -> Callable[[], object]:
    work = _workloads.build(name)
    kind, _, path = way.partition(":")
    if kind == "jax":
        from bench._workloads_jax import jax_step

        return jax_step(work)
    if kind in ("jit", "dynamo"):
        return {"jit": _workloads.pure, "dynamo": _workloads.dynamo}[kind](work)
    state, batch = _workloads.first_state(work.net), work.batch
    if kind == "save":
        step = fl.jit(_workloads.pure_step(work.net), donate=0)
        return lambda: step.lower(state, batch).compile().save(path)
    return lambda: load_compiled(path)(state, batch)


def main(way: str, name: str) -> None:
    run = (lambda: None) if way == "nothing" else first_step(way, name)
    began = time.perf_counter()
    run()
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
