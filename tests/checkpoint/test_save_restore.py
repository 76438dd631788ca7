"""A tree comes back as it was, bit for bit, or with an error that names every difference."""

from __future__ import annotations

import json
import math
import pickle
import struct
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from torch import Tensor, nn

from funcloop import checkpoint, optim, random, tree
from funcloop._errors import (
    CheckpointError,
    DonationError,
    MissingExtraError,
    StructureError,
    UnsupportedError,
)
from funcloop.checkpoint import restore, save
from funcloop.compile import jit
from funcloop.step import TrainState
from funcloop.testing import trees
from tests.laws import assert_trees_equal, snapshot

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.bool),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.complex128, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
]


def random_bytes(dtype: torch.dtype, *shape: int) -> Tensor:
    """Any bit pattern, NaN payloads among them."""
    count = math.prod(shape) * dtype.itemsize
    data = torch.randint(2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8)
    return data.view(dtype).view(shape)


def bits(x: Tensor) -> Tensor:
    return x.detach().cpu().resolve_conj().resolve_neg().flatten().clone().view(torch.uint8)


def assert_same(got: Tensor, want: Tensor) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert torch.equal(bits(got), bits(want))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tree.safetensors"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (7,), (3, 2)], ids=str)
def test_every_dtype_and_shape(path: Path, dtype: torch.dtype, shape: tuple[int, ...]):
    want = random_bytes(dtype, *shape)
    save(path, {"x": want})
    assert_same(restore(path)["x"], want)
    assert_same(restore(path, like={"x": torch.empty_like(want)})["x"], want)


@given(trees())
def test_any_tree(tmp_path_factory: pytest.TempPathFactory, wanted: object):
    path = tmp_path_factory.getbasetemp() / "any"
    save(path, wanted)
    assert_trees_equal(restore(path, like=wanted), wanted)


def test_python_values(path: Path):
    values = {
        "ints": [0, -1, 1 << 80],
        "floats": (0.1, -0.0, math.inf, -math.inf, 5e-324),
        "others": [True, "ä\n\ud800", "", None, 1 - 2j],
        "nan": math.nan,
        3: {},
    }
    save(path, values)
    for got in (restore(path), restore(path, like=values)):
        assert math.isnan(got.pop("nan"))
        assert got == {name: value for name, value in values.items() if name != "nan"}
        assert math.copysign(1, got["floats"][1]) == -1
        assert [type(x) for x in got["others"]] == [bool, str, str, type(None), complex]


def test_a_single_leaf_and_odd_names(path: Path):
    save(path, torch.arange(3))
    assert restore(path, like=torch.zeros(3, dtype=torch.int64)).tolist() == [0, 1, 2]
    odd = {"__metadata__": torch.ones(1), "": torch.zeros(2), 'q"\\': torch.ones(3)}
    save(path, odd)
    assert_trees_equal(restore(path), odd)


def test_a_train_state_comes_back_as_such(path: Path):
    params = {"w": torch.randn(3, 2), "b": torch.randn(2)}
    tx = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-3))
    state = TrainState.create(params, {"n": torch.tensor(3)}, tx, key=random.key(1))
    save(path, state)
    fresh = TrainState.create(
        tree.zeros_like(params), {"n": torch.tensor(0)}, tx, key=random.key(0)
    )
    got = restore(path, like=fresh)
    assert_trees_equal(got, state)
    assert tree.structure(got) == tree.structure(state)
    assert list(restore(path)) == list(TrainState._fields)


def test_matched_by_path_and_never_by_position(path: Path):
    save(path, {"a": torch.tensor(1.0), "b": torch.tensor(10.0)})
    got = restore(path, like={"b": torch.tensor(0.0), "a": torch.tensor(0.0)})
    assert list(got) == ["b", "a"]
    assert (float(got["a"]), float(got["b"])) == (1.0, 10.0)


def test_one_part_of_a_file(path: Path):
    save(path, {"first": [torch.zeros(1), 2], "state": {"a/b": {"w": torch.ones(2)}, "n": 5}})
    assert_trees_equal(restore(path, at="state/a/b"), {"w": torch.ones(2)})
    assert restore(path, like=0, at="state/n") == restore(path, at="state/n") == 5
    assert restore(path, at="first/1") == 2
    with pytest.raises(StructureError, match=r"'state/x' is not in .* \['a/b', 'n'\] at 'x'"):
        restore(path, at="state/x")


def test_the_file_is_plain_safetensors(path: Path):
    want = {"w": torch.randn(2, 3), "n": {"x": torch.tensor(7)}}
    save(path, want)
    got = safetensors.torch.load_file(path)
    assert sorted(got) == ["n/x", "w"]
    assert_same(got["w"], want["w"])


def test_b04_nothing_is_pickled(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Stricter than weights_only: a file is JSON and numbers, without a place for anything else."""
    state = TrainState.create({"w": torch.randn(5)}, {}, optim.adamw(1e-3), key=random.key(1))
    save(path, {"state": state, "position": (3, 1), "name": "x"})

    def refuse(*_: object, **__: object):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert restore(path, at="position") == (3, 1)
    assert_trees_equal(restore(path, like=state, at="state"), state)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    ends = sorted(entry["data_offsets"] for entry in header.values())
    assert [start for start, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert 8 + length + ends[-1][1] == len(data)


def test_views_expanded_and_transposed_leaves(path: Path):
    base = torch.arange(12.0).reshape(3, 4)
    views = {
        "row": base[1],
        "overlap": base[0:2],
        "column": base[:, 2],
        "transposed": base.t(),
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "strided": base[::2, ::2],
        "conj": torch.randn(2, 2, dtype=torch.complex64).conj(),
        "neg": torch.randn(3, dtype=torch.complex64).conj().imag,
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    save(path, views)
    assert path.stat().st_size < 5000  # the numbers shown, not the storages
    got = restore(path)
    for name, want in views.items():
        assert_same(got[name], want)
        assert got[name].stride() == want.clone().stride(), name
        assert got[name].untyped_storage().nbytes() == want.numel() * want.element_size()


def test_memory_is_torchs_own(path: Path):
    """Mapped from a file, tensors lie at any address, and kernels may round by address."""
    save(path, {f"{n}": torch.ones(n, dtype=torch.uint8) for n in range(1, 9)})
    save(path, {"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(5)})
    for got in (restore(path), restore(path, like=restore(path))):
        assert all(x.data_ptr() % 64 == 0 for x in got.values())
    before = restore(path)["b"]
    before += 1  # and writing to it leaves the file alone
    assert restore(path)["b"].tolist() == [1.0] * 5


def test_tied_leaves_are_written_once_and_stay_tied(path: Path):
    w = torch.randn(1000)
    tied = {"a": w, "b": w, "view": w[:], "other": w.clone()}
    save(path, tied)
    assert path.stat().st_size < 10_000
    got = restore(path)
    assert got["a"] is got["b"] is got["view"]
    assert got["other"] is not got["a"]
    got = restore(path, like=tied)
    assert got["a"] is got["b"]
    got = restore(path, like=snapshot(tied))
    assert len({x.data_ptr() for x in got.values()}) == 4  # like says what is shared
    assert_trees_equal(got, tied)


def test_ties_that_the_file_does_not_have(path: Path):
    w, nan = torch.randn(3), torch.tensor([math.nan, 1.0, 2.0])
    save(path, {"a": nan, "b": nan.clone()})
    got = restore(path, like={"a": w, "b": w})
    assert got["a"] is got["b"]
    save(path, {"a": w, "b": w + 1})
    with pytest.raises(StructureError, match=r"a and b are one tensor in like, and differ in the"):
        restore(path, like={"a": w, "b": w})


def test_what_like_says_of_devices_and_gradients(path: Path, device: torch.device):
    save(path, {"w": torch.ones(2, device=device), "n": torch.tensor(1, device=device)})
    like = {"w": nn.Parameter(torch.zeros(2, device=device)), "n": torch.tensor(0, device=device)}
    got = restore(path, like=like)
    assert got["w"].requires_grad
    assert not got["n"].requires_grad
    assert {x.device.type for x in got.values()} == {device.type}
    meta = {"w": torch.empty(2, device="meta"), "n": torch.empty((), dtype=torch.int64)}
    assert restore(path, like=meta)["w"].tolist() == [1.0, 1.0]
    for got in (restore(path, map_location="meta"), restore(path, like, map_location="meta")):
        assert got["w"].is_meta


def test_every_difference_is_listed(path: Path):
    class Other(NamedTuple):
        count: object

    class State(NamedTuple):
        count: object

    save(path, {
        "same": torch.ones(1),
        "shape": torch.ones(2, 3),
        "dtype": torch.ones(2),
        "kind": 1,
        "number": True,
        "gone": torch.ones(4),
        "class": State(0),
    })  # fmt: skip
    like = {
        "same": torch.ones(1),
        "shape": torch.ones(3, 2),
        "dtype": torch.ones(2, dtype=torch.bfloat16),
        "kind": torch.tensor(1),
        "number": 1,
        "new": 0.5,
        "class": Other(0),
    }
    with pytest.raises(StructureError) as caught:
        restore(path, like=like)
    assert caught.value.value.splitlines() == [
        "7 differences",
        *(
            f"  {line}"
            for line in [
                "class: a test_every_difference_is_listed.<locals>.State in the file, "
                "wanted a test_every_difference_is_listed.<locals>.Other",
                "shape: float32 (2, 3) in the file, wanted float32 (3, 2)",
                "dtype: float32 (2,) in the file, wanted bfloat16 (2,)",
                "kind: int in the file, wanted int64 ()",
                "number: bool in the file, wanted int",
                "new: not in the file, wanted float",
                "gone: float32 (4,) in the file, not wanted",
            ]
        ),
    ]


def test_an_optimizer_with_the_same_fields_is_another(path: Path):
    params = {"w": torch.ones(2)}
    save(path, optim.scale_by_adam().init(params))
    assert restore(path, like=optim.scale_by_adam().init(params))
    for other in (optim.scale_by_adamax(), optim.scale_by_nadam()):
        with pytest.raises(StructureError):
            restore(path, like=other.init(params))


def test_a_registered_container_and_other_mappings(path: Path):
    want = defaultdict(list, a=torch.ones(1), b=OrderedDict(c=torch.ones(2)))
    save(path, want)
    got = restore(path, like=want)
    assert type(got) is defaultdict
    assert type(got["b"]) is OrderedDict
    assert_trees_equal(got, want)


def test_what_is_no_value_is_refused(path: Path):
    for leaf, message in [
        (np.float64(1.0), r"x is a numpy\.float64"),
        (np.ones(2), r"x is a numpy\.ndarray"),
        (print, "builtin_function"),
        (b"", r"builtins\.bytes"),
        (torch.ones(2).to_sparse(), r"x is sparse_coo.*to_dense"),
        (torch.empty(2, device="meta"), "meta device"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "x is qint8.*int_repr"),
        (torch.ones(2).as_subclass(type("Odd", (Tensor,), {})), r"x is a .*\.Odd"),
        (torch.empty(2, dtype=torch.uint4), "x is uint4.*as uint8"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            save(path, {"x": leaf})
    assert not path.exists()


def test_a_donated_leaf_is_refused(path: Path):
    step = jit(lambda x: x + 1, donate=0, backend="aot_eager")
    x = torch.ones(2)
    step(x)
    with pytest.raises(DonationError):
        save(path, {"x": x})


def test_paths_that_two_leaves_share_are_refused(path: Path):
    with pytest.raises(StructureError, match=r"two leaves of the tree have the path 'a/b'"):
        save(path, {"a/b": 1, "a": {"b": 2}})
    with pytest.raises(StructureError, match="path '1'"):
        save(path, {1: 1, "1": 2})
    save(path, {"a": {"b": 1}})
    with pytest.raises(StructureError, match=r"two leaves of like have the path 'a/b'"):
        restore(path, like={"a/b": 1, "a": {"b": 2}})


def test_only_values_are_saved(path: Path):
    def inside(x: Tensor) -> Tensor:
        save(path, {"x": x})
        return x.sum()

    for transformed in (torch.func.grad(inside), torch.vmap(inside)):
        with pytest.raises(UnsupportedError, match="inside a transform or a trace"):
            transformed(torch.ones(2))


def test_files_that_are_no_checkpoints(path: Path):
    with pytest.raises(FileNotFoundError):
        restore(path)
    for data in (b"", b"rubbish", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 100):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"restore reads what save wrote.*load_torch"):
            restore(path)
    torch.save({"w": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="restore reads what save wrote"):
        restore(path)
    safetensors.torch.save_file({"w": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="of another writer"):
        restore(path)


def test_a_missing_extra_is_named_at_the_first_save(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (lambda: save(path, {"w": 1}), lambda: restore(path)):
        with pytest.raises(MissingExtraError, match=r"safetensors is missing.*funcloop\[loop\]"):
            call()
    assert not path.exists()


def test_every_truncation_is_noticed(path: Path):
    save(path, {"w": torch.ones(20), "n": 1})
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            restore(path)


def test_a_newer_format_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint._file, "_VERSION", 2)  # type: ignore[attr-defined]
    save(path, {"w": 1})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"format 2, known is 1.*upgrade"):
        restore(path)


def test_saving_leaves_the_tree_and_the_generator_alone(path: Path):
    torch.manual_seed(0)
    want = {"w": torch.randn(3).requires_grad_(), "t": torch.randn(2, 3).t()}
    before, kept = torch.get_rng_state(), snapshot(want)
    save(path, want)
    restore(path, like=want)
    assert torch.equal(torch.get_rng_state(), before)
    assert_trees_equal(want, kept)
