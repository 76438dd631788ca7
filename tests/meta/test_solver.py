import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from funcloop._errors import ArgumentError, ConvergenceError, StructureError, UnsupportedError
from funcloop.meta import cg, gmres, lu, neumann, normal_cg
from tests.laws import assert_jit_equal, assert_pure, assert_trees_close, assert_vmap_equal

F64 = torch.float64
SPD = {"cg": cg(maxiter=10), "neumann": neumann(1.0, maxiter=24)}
ANY = {"normal_cg": normal_cg(maxiter=8), "gmres": gmres(restart=5, maxiter=2), "lu": lu()}
ALL = SPD | ANY


def matrix(n: int, seed: int, spd: bool, dtype=F64) -> torch.Tensor:
    """Well conditioned, eigenvalues (SPD) in [0.8, 1.2]."""
    g = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=F64))[0]
    d = torch.linspace(0.8, 1.2, n, dtype=F64)
    p = q if spd else torch.linalg.qr(torch.randn(n, n, generator=g, dtype=F64))[0]
    return ((q * d) @ p.T).to(dtype)


def dense(x, a):
    """The product with a matrix that couples two leaves."""
    n = x["u"].numel()
    whole = a @ torch.cat([x["u"], x["v"].reshape(-1)])
    return {"v": whole[n:].reshape(x["v"].shape), "u": whole[:n]}


def split(b):
    return {"u": b[:2], "v": b[2:].reshape(1, -1)}


@pytest.mark.parametrize("name", ALL)
@given(n=st.integers(3, 5), seed=st.integers(0, 99), dtype=st.sampled_from([F64, torch.float32]))
@settings(max_examples=4)
def test_solution_of_trees_equals_the_dense_one(name, n, seed, dtype):
    a = matrix(n, seed, name in SPD, dtype)
    b = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)
    x, info = ALL[name](dense, split(b), a)
    assert info.converged
    want = torch.linalg.solve(a.double(), b.double()).to(dtype)
    assert_trees_close(x, split(want), 1e-9 if dtype is F64 else 1e-4)
    assert info.residual <= 7e-6 * b.norm()


@pytest.mark.parametrize("name", ALL)
def test_composes_with_vmap_and_jit(name, device):
    a = torch.stack([matrix(4, s, name in SPD) for s in range(3)]).to(device)
    b = torch.arange(12, dtype=F64, device=device).reshape(3, 4)

    def solve(a, b):
        return ALL[name](lambda x, a: a @ x, b, a)

    assert_pure(solve, a[0], b[1])
    assert_vmap_equal(lambda a, b: solve(a, b)[0], *zip(a, b, strict=True), rtol=1e-9)
    assert_jit_equal(torch.func.vmap(lambda a, b: solve(a, b)[0]), a, b, rtol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_derivatives_equal_those_of_the_dense_solve(name):
    a, b, w = matrix(4, 1, name in SPD), torch.arange(4.0, dtype=F64), torch.randn(4, dtype=F64)

    def got(a, b):
        return (
            ALL[name](lambda x, a: (a + a.T if name in SPD else 2 * a) @ x / 2, b, a)[0] * w
        ).sum()

    def want(a, b):
        return (torch.linalg.solve(a + a.T if name in SPD else 2 * a, b) * 2 * w).sum()

    for derive in (
        lambda f: torch.func.grad(f, argnums=(0, 1))(a, b),
        lambda f: torch.func.jvp(f, (a, b), (a.cos(), b + 1))[1],
        lambda f: torch.func.hessian(f, argnums=1)(a, b),
        lambda f: torch.func.jacrev(torch.func.grad(f))(a, b),
        lambda f: torch.func.vmap(torch.func.grad(f), (0, None))(torch.stack([a, a * 1.05]), b),
    ):
        assert_trees_close(derive(got), derive(want), 1e-8)
    assert_jit_equal(torch.func.grad(got, argnums=(0, 1)), a, b, rtol=1e-9)


def test_plain_autograd_sees_the_same_derivative():
    a, b = matrix(3, 0, True), torch.ones(3, dtype=F64, requires_grad=True)
    cg()(lambda x, a: a @ x, b, a)[0].sum().backward()
    assert_trees_close(b.grad, torch.linalg.solve(a, torch.ones(3, dtype=F64)), 1e-9)


class TestUnconverged:
    a = torch.diag(torch.tensor([1.0, 10.0, 100.0, 1000.0], dtype=F64))
    b = torch.ones(4, dtype=F64)
    short = cg(maxiter=1)

    def solve(self, a, b):
        return self.short(lambda x, a: a @ x, b, a)[0].sum()

    def test_is_reported(self):
        _, info = self.short(lambda x: self.a @ x, self.b)
        assert not info.converged
        assert info.iterations == 1

    def test_its_derivative_raises_eagerly(self):
        with pytest.raises(ConvergenceError, match="cg did not converge"):
            torch.func.grad(self.solve)(self.a, self.b)

    def test_its_derivative_is_nan_for_that_member_under_vmap(self):
        a = torch.stack([self.a, torch.eye(4, dtype=F64)])
        grads = torch.func.vmap(torch.func.grad(self.solve), (0, None))(a, self.b)
        assert grads[0].isnan().all()
        assert_trees_close(grads[1], -torch.ones(4, 4, dtype=F64))

    def test_its_derivative_is_nan_under_jit(self):
        from funcloop.compile import jit

        step = jit(torch.func.grad(self.solve), backend="aot_eager")
        assert step(self.a, self.b).isnan().all()

    @pytest.mark.parametrize("solver", [lu(), gmres(), normal_cg()], ids=lambda s: s.name)
    def test_singular(self, solver):
        _, info = solver(lambda x: torch.stack([x[0], x[0]]), torch.tensor([1.0, 2.0]))
        assert not info.converged

    def test_negative_curvature(self):
        _, info = cg()(lambda x: -x, torch.tensor([1.0, 2.0]))
        assert not info.converged
        assert info.iterations == 1


def test_tolerance_and_limit_may_be_tensors_and_do_not_retrace():
    from funcloop.compile import jit

    a = matrix(6, 0, True)

    @jit(backend="aot_eager")
    def solve(rtol, limit, b):
        return cg(rtol=rtol, maxiter=limit, bound=12)(lambda x: a @ x, b)[1]

    counts = [
        int(solve(torch.tensor(rtol), torch.tensor(n), torch.ones(6, dtype=F64)).iterations)
        for rtol, n in [(1e-9, 12), (1e-1, 12), (1e-9, 2)]
    ]
    assert counts[0] > counts[1] >= 1
    assert counts[2] == 2
    assert solve.traces == 1
    with pytest.raises(ArgumentError, match="bound="):
        cg(maxiter=torch.tensor(3))


def test_dtypes_and_empty_trees():
    b = {"h": torch.ones(2, dtype=torch.bfloat16), "s": torch.tensor(2.0)}
    x, info = cg()(lambda x: {"h": 2 * x["h"], "s": 4 * x["s"]}, b)
    assert info.converged
    want = {"h": torch.full((2,), 0.5, dtype=torch.bfloat16), "s": torch.tensor(0.5)}
    assert_trees_close(x, want, 1e-3)  # the tolerance is that of the coarsest dtype
    assert cg()(lambda x: x, {})[0] == {}


def test_complex():
    a = torch.tensor([[2.0, 1j], [-1j, 3.0]], dtype=torch.complex128)
    b = torch.tensor([1 + 1j, 2.0], dtype=torch.complex128)
    for solver in (cg(), normal_cg(), gmres(), lu()):
        x, info = solver(lambda x: a @ x, b)
        assert info.converged, solver.name
        assert_trees_close(x, torch.linalg.solve(a, b), 1e-9)


def test_refusals():
    with pytest.raises(StructureError, match="returns what it takes"):
        cg()(lambda x: torch.cat([x, x]), torch.ones(2))
    with pytest.raises(UnsupportedError, match="pass that tensor as an argument"):
        torch.func.grad(lambda s: cg()(lambda x: s * x, torch.ones(2))[0].sum())(torch.tensor(2.0))
