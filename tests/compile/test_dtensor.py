"""Sharded state, jitted and donated: a wrapper is updated in place, once, and never used again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import funcloop as fl
from funcloop._errors import DonationError


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """One gloo rank: the wrapper and its rules are those of many."""
    dist.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def step(state, x):
    gradient = torch.func.grad(lambda w: ((x @ w) ** 2).sum())(state["w"])
    return {"w": state["w"] - 0.1 * gradient}, gradient.sum()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_sharded_state_is_updated_in_place(mesh: DeviceMesh, backend: str):
    f = fl.jit(step, donate=0, backend=backend)
    want, x = {"w": torch.arange(6.0).view(3, 2)}, torch.ones(4, 3)
    state = {"w": distribute_tensor(want["w"].clone(), mesh, [Shard(0)])}
    batch = distribute_tensor(x, mesh, [Replicate()])
    place = state["w"].to_local().data_ptr()
    for _ in range(3):
        old = state
        state, total = f(state, batch)
        want, wanted = step(want, x)
        torch.testing.assert_close(state["w"].full_tensor(), want["w"])
        torch.testing.assert_close(total.full_tensor(), wanted)
        assert state["w"].to_local().data_ptr() == place
        with pytest.raises(DonationError, match="a donated tensor is gone"):
            old["w"] + 1
    assert f.traces == 1


def test_shared_shards_are_refused(mesh: DeviceMesh):
    def sharded() -> torch.Tensor:
        return distribute_tensor(torch.ones(3, 2), mesh, [Shard(0)])

    f = fl.jit(lambda state, x: state + x, donate=0, backend="aot_eager")
    f(sharded(), sharded())
    w = sharded()
    with pytest.raises(DonationError, match="shares its storage"):
        f(w, w.detach())
