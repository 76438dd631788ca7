"""Wrappers are looked through at any depth; what cannot be swapped is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from funcloop._errors import UnsupportedError
from funcloop.stateless import stateless
from tests.laws import assert_trees_equal


def compiled(net: nn.Module) -> nn.Module:
    return torch.compile(net, backend="eager")  # type: ignore[return-value]  # a module


WRAPPERS = {
    "compiled": compiled,
    "data parallel": nn.DataParallel,
    "compiled data parallel": lambda net: compiled(nn.DataParallel(net)),
    "data parallel compiled": lambda net: nn.DataParallel(compiled(net)),
}


def affine() -> nn.Linear:
    lin = nn.Linear(1, 1)
    lin.weight.data.fill_(2.0)
    lin.bias.data.fill_(1.0)
    return lin


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_b18_names_are_bare_and_params_count(wrapper: str):
    model = stateless(WRAPPERS[wrapper](affine()))
    params, buffers = model.init()
    assert list(params) == ["weight", "bias"]
    zeros = {name: torch.zeros_like(p) for name, p in params.items()}
    for _ in range(2):
        for given, want in ((params, 7.0), (zeros, 0.0)):
            output, _ = model.apply(given, buffers, torch.tensor([[3.0]]), train=True)
            assert_trees_equal(output, torch.tensor([[want]]))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_b18_inner_blocks_are_unwrapped_for_the_call(wrapper: str):
    block = nn.Sequential(WRAPPERS[wrapper](affine()))
    net = nn.Sequential(WRAPPERS[wrapper](block), affine())
    children = list(net.children())
    model = stateless(net)
    params, _ = model.init()
    assert list(params) == ["0.0.weight", "0.0.bias", "1.weight", "1.bias"]
    assert model.paths == ("", "0", "0.0", "1")
    zeros = {name: torch.zeros_like(p) for name, p in params.items()}
    for given, want in ((params, 15.0), (zeros, 0.0)):
        output, _ = model.apply(given, {}, torch.tensor([[3.0]]), train=True)
        assert_trees_equal(output, torch.tensor([[want]]))
    assert list(net.children()) == children
    merged = model.merge(params, {})
    assert list(merged.state_dict()) == list(params)
    assert_trees_equal(merged(torch.tensor([[3.0]])).detach(), torch.tensor([[15.0]]))


def test_b18_a_module_compiled_in_place():
    lin = affine()
    lin.compile(backend="eager")
    call = lin._compiled_call_impl
    model = stateless(lin)
    params, _ = model.init()
    zeros = {name: torch.zeros_like(p) for name, p in params.items()}
    for given, want in ((params, 7.0), (zeros, 0.0)):
        output, _ = model.apply(given, {}, torch.tensor([[3.0]]), train=True)
        assert_trees_equal(output, torch.tensor([[want]]))
    assert lin._compiled_call_impl is call


def test_b18_distributed_modules_are_unwrapped(tmp_path):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        net = nn.parallel.DistributedDataParallel(affine())
        model = stateless(net)
        params, _ = model.init()
        assert list(params) == ["weight", "bias"]
        output, _ = model.apply(params, {}, torch.tensor([[3.0]]), train=True)
        assert_trees_equal(output, torch.tensor([[7.0]]))
    finally:
        torch.distributed.destroy_process_group()


def test_sharded_modules_are_refused():
    class FSDPModule(nn.Module):  # torch derives the class of a sharded module from its own
        pass

    with pytest.raises(UnsupportedError, match=r"no whole parameters.*module '0'"):
        stateless(nn.Sequential(FSDPModule()))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_b18_script_modules_are_refused():
    scripted = torch.jit.script(affine())
    with pytest.raises(UnsupportedError, match=r"ScriptModule.*the module itself"):
        stateless(scripted)
    with pytest.raises(UnsupportedError, match=r"ScriptModule.*module '0'"):
        stateless(nn.Sequential(scripted))
