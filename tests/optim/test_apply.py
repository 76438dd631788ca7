import pytest
import torch

from funcloop import optim
from funcloop._errors import ShapeError, StructureError
from tests.laws import assert_dtype_preserved, assert_pure
from tests.optim.trajectories import start


def test_b08_by_key_not_by_position():
    params = {"a": torch.tensor(1.0), "b": torch.tensor(10.0)}
    grads = {"b": torch.tensor(1.0), "a": torch.tensor(5.0)}
    for tx in (optim.sgd(0.1), optim.sgd(0.1, momentum=0.9)):
        updates, _ = tx.update(grads, tx.init(params), params)
        new = optim.apply_updates(params, updates)
        assert {k: round(v.item(), 6) for k, v in new.items()} == {"a": 0.5, "b": 9.9}
        assert list(new) == ["a", "b"]


@pytest.mark.parametrize("keys", [("a",), ("a", "b", "c"), ("a", "c")])
def test_b08_missing_and_extra_keys_are_named(keys):
    params = {"a": torch.tensor(1.0), "b": torch.tensor(10.0)}
    updates = {k: torch.tensor(1.0) for k in keys}
    name = sorted(set(keys) ^ {"a", "b"})[0]
    with pytest.raises(StructureError, match=name):
        optim.apply_updates(params, updates)
    tx = optim.adam()
    with pytest.raises(StructureError, match=name):
        tx.update(updates, tx.init(params), params)


def test_another_shape_is_refused():
    with pytest.raises(ShapeError, match=r"w: \(1,\) for \(3,\)"):
        optim.apply_updates({"w": torch.ones(3)}, {"w": torch.ones(1)})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtype_is_that_of_the_params(dtype, device):
    params = start(dtype, device)
    updates = {k: torch.ones_like(v, dtype=torch.float64) for k, v in params.items()}
    assert_dtype_preserved(lambda p: optim.apply_updates(p, updates), params)
    assert_pure(optim.apply_updates, params, updates)


def test_a_leaf_without_update_is_carried():
    params = start()
    new = optim.apply_updates(params, {**params, "b": None})
    assert new["b"] is params["b"]
