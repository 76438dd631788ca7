"""What the loop over leaves does for every formula."""

import pytest
import torch

from funcloop import optim
from funcloop._errors import ShapeError
from funcloop.optim._leaves import map_leaves, safe_sqrt


def test_a_formula_sees_real_numbers_of_one_dtype_at_least_float32():
    seen = {}

    def formula(u, kept, read, scalar):
        seen[u.shape] = (u.dtype, kept.dtype, read.dtype, scalar.dtype)
        return u, kept

    f32 = torch.float32
    updates = {"a": torch.ones(3, dtype=torch.float16), "z": torch.ones(2, dtype=torch.complex64)}
    reads = {"a": torch.ones(3, dtype=torch.float64), "z": updates["z"]}
    state = {"a": torch.ones(3), "z": updates["z"]}
    scalar = torch.tensor(0.1, dtype=torch.float64)
    new, kept = map_leaves(formula, updates, state=[state], reads=[reads], scalars=[scalar])
    assert seen == {(3,): (torch.float64,) * 4, (2, 2): (f32,) * 4}
    assert new["a"].dtype is torch.float64
    assert kept["a"].dtype is f32
    assert new["z"].dtype is torch.complex64


def test_a_gradient_of_another_shape_is_refused_by_path():
    params = {"w": torch.ones(3)}
    tx = optim.adam()
    with pytest.raises(ShapeError, match=r"w: \(1,\) for \(3,\)"):
        tx.update({"w": torch.ones(1)}, tx.init(params), params)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_root_has_derivative_zero_at_zero_and_is_exact_elsewhere(dtype, device):
    x = torch.tensor([0.0, 1e-30, 1e-8, 4.0], dtype=dtype, device=device)
    assert torch.equal(safe_sqrt(x)[1:], x.sqrt()[1:])
    assert safe_sqrt(x)[0] < 1e-18
    first = torch.func.vmap(torch.func.grad(safe_sqrt))(x)
    second = torch.func.vmap(torch.func.grad(torch.func.grad(safe_sqrt)))(x)
    assert first[0] == 0
    assert second[0] == 0
    torch.testing.assert_close(first[1:], 0.5 / x.sqrt()[1:])
