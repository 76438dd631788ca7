import pytest
import torch

from funcloop import optim, random, tree
from funcloop._errors import ConvergenceError, StructureError, UnsupportedError
from funcloop.meta import (
    bilevel,
    cg,
    custom_fixed_point,
    custom_root,
    gmres,
    imaml,
    lu,
    neumann,
    normal_cg,
    unroll,
)
from tests.laws import assert_jit_equal, assert_pure, assert_trees_close, assert_vmap_equal

F64 = torch.float64
G = torch.Generator().manual_seed(0)
X = torch.randn(12, 4, generator=G, dtype=F64)
Y = torch.randn(12, generator=G, dtype=F64)
VAL = torch.randn(4, generator=G, dtype=F64)
SOLVERS = {"cg": cg(), "normal_cg": normal_cg(), "gmres": gmres(), "lu": lu()}
RIDGE_SOLVERS = SOLVERS | {"neumann": neumann(0.05, maxiter=400)}


class TestRidge:
    """w(l) = (X'X + l I)^-1 X'y, so dw/dl = -(X'X + l I)^-1 w."""

    lam = torch.tensor(0.7, dtype=F64)

    @staticmethod
    def optimality(w, lam, x):
        return x.T @ (x @ w - Y) + lam * w

    @staticmethod
    def solve(lam, x):
        return torch.linalg.solve(x.T @ x + lam * torch.eye(4, dtype=F64), x.T @ Y)

    def slope(self):
        w = self.solve(self.lam, X)
        return -torch.linalg.solve(X.T @ X + self.lam * torch.eye(4, dtype=F64), w)

    @pytest.mark.parametrize("name", RIDGE_SOLVERS)
    def test_equals_the_closed_form(self, name):
        root = custom_root(self.optimality, self.solve, solver=RIDGE_SOLVERS[name])
        assert_trees_close(torch.func.jacrev(root)(self.lam, X), self.slope(), 1e-8)
        assert_trees_close(torch.func.jacfwd(root)(self.lam, X), self.slope(), 1e-8)

    def test_second_derivative_and_data_gradient(self):
        root = custom_root(self.optimality, self.solve, solver=lu())

        def outer(f):
            return lambda lam, x: (f(lam, x) - VAL).square().sum()

        both = torch.func.grad(outer(self.solve), argnums=(0, 1))(self.lam, X)
        assert_trees_close(torch.func.grad(outer(root), argnums=(0, 1))(self.lam, X), both, 1e-8)
        want = torch.func.grad(torch.func.grad(outer(self.solve)))(self.lam, X)
        f = outer(root)
        for second in (
            torch.func.grad(torch.func.grad(f)),
            torch.func.jacfwd(torch.func.grad(f)),
            # torch's own jacrev(jacfwd(torch.linalg.solve)) is wrong here (2.13); this is right.
            torch.func.jacrev(torch.func.jacfwd(f)),
        ):
            assert_trees_close(second(self.lam, X), want, 1e-8)
        with pytest.raises(UnsupportedError, match="taken forward once"):
            torch.func.jacfwd(torch.func.jacfwd(f))(self.lam, X)

    def test_composes(self):
        root = custom_root(self.optimality, self.solve, solver=cg(maxiter=6))
        gradient = torch.func.grad(lambda lam: (root(lam, X) - VAL).square().sum())
        assert_pure(root, self.lam, X)
        assert_vmap_equal(gradient, (self.lam,), (self.lam + 1,))
        assert_jit_equal(gradient, self.lam, rtol=1e-9)
        assert_jit_equal(
            torch.func.vmap(gradient), torch.stack([self.lam, self.lam * 2]), rtol=1e-9
        )

    def test_unrolled_and_implicit_agree_at_convergence(self):
        rate = 0.9 / torch.linalg.eigvalsh(X.T @ X)[-1]

        def descend(lam, x):
            step = lambda w, lam: (w - rate * self.optimality(w, lam, x), {})  # noqa: E731
            return unroll(step, 300)(torch.zeros(4, dtype=F64), lam)[0]

        root = custom_root(self.optimality, descend, solver=cg(), tol=1e-8)
        unrolled = torch.func.jacrev(descend)(self.lam, X)
        assert_trees_close(torch.func.jacrev(root)(self.lam, X), unrolled, 1e-7)

    def test_a_point_that_is_no_root_has_no_derivative(self):
        root = custom_root(self.optimality, lambda lam, x: torch.ones(4, dtype=F64))
        with pytest.raises(ConvergenceError, match="the solution did not converge"):
            torch.func.grad(lambda lam: root(lam, X).sum())(self.lam)
        batched = torch.func.vmap(torch.func.grad(lambda lam: root(lam, X).sum()))
        assert batched(torch.stack([self.lam, self.lam])).isnan().all()
        trusting = custom_root(self.optimality, lambda lam, x: X[0], tol=float("inf"))
        assert torch.func.jacrev(trusting)(self.lam, X).isfinite().all()


@pytest.mark.parametrize("name", [*SOLVERS, "neumann"])
def test_fixed_point_of_a_tanh_cell(name):
    w = torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=F64)
    b = torch.tensor([0.5, -1.0], dtype=F64)

    def f(x, w, b):
        return torch.tanh(w @ x + b)

    def solve(w, b):
        return unroll(lambda x, args: (f(x, *args), {}), 80)(torch.zeros(2, dtype=F64), (w, b))[0]

    # w is not symmetric: cg would be wrong, and says so.
    if name == "cg":
        w = (w + w.T) / 2
    x = solve(w, b)
    d = torch.diag(1 - x**2)
    want = torch.linalg.solve(torch.eye(2, dtype=F64) - d @ w, d)
    solver = neumann() if name == "neumann" else SOLVERS[name]
    point = custom_fixed_point(f, solve, solver=normal_cg() if name == "cg" else solver)
    assert_trees_close(torch.func.jacrev(point, argnums=1)(w, b), want, 1e-8)
    assert_trees_close(torch.func.jacfwd(point, argnums=1)(w, b), want, 1e-8)
    unrolled = torch.func.jacrev(solve, argnums=0)(w, b)
    assert_trees_close(torch.func.jacrev(point, argnums=0)(w, b), unrolled, 1e-8)


@pytest.mark.parametrize("solver", [gmres(), normal_cg(), lu()], ids=lambda s: s.name)
def test_equality_constrained_quadratic(solver):
    """min 1/2 x'Qx + c'x with Ax = b: K is indefinite, and d(x, nu) = K^-1 d(-c, b)."""
    q = torch.diag(torch.tensor([2.0, 1.0, 3.0], dtype=F64)) + 0.1
    a = torch.tensor([[1.0, 1.0, 1.0]], dtype=F64)
    c, b = torch.tensor([1.0, -1.0, 0.5], dtype=F64), torch.tensor([2.0], dtype=F64)
    k = torch.cat([torch.cat([q, a.T], 1), torch.cat([a, torch.zeros(1, 1, dtype=F64)], 1)])

    def kkt(z, c, b):
        return {"nu": a @ z["x"] - b, "x": q @ z["x"] + c + a.T @ z["nu"]}

    def solve(c, b):
        z = torch.linalg.solve(k, torch.cat([-c, b]))
        return {"x": z[:3], "nu": z[3:]}

    root = custom_root(kkt, solve, solver=solver)
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        got = jacobian(lambda c, b: root(c, b)["x"], argnums=(0, 1))(c, b)
        inverse = torch.linalg.inv(k)
        assert_trees_close(got, (-inverse[:3, :3], inverse[:3, 3:]), 1e-8)


def test_refusals():
    with pytest.raises(StructureError, match="one equation for each unknown"):
        custom_root(lambda x, a: x[:1] - a, lambda a: torch.ones(2))(torch.tensor(1.0))
    with pytest.raises(StructureError, match="optimality"):
        custom_root(lambda x, a: {"y": x["x"]}, lambda a: {"x": a})(torch.tensor(1.0))

    def f(captured):
        return custom_root(lambda x, a: x - captured * a, lambda a: a * captured.detach())(
            torch.tensor(1.0)
        )

    with pytest.raises(UnsupportedError, match="captured"):
        torch.func.grad(f)(torch.tensor(2.0))


class TestImaml:
    """Quadratic tasks: support 1/2 (p - s)'A(p - s), query 1/2 |p - t|^2."""

    a = torch.diag(torch.tensor([1.0, 2.0, 0.5], dtype=F64))
    s, t = torch.tensor([1.0, -1.0, 2.0], dtype=F64), torch.tensor([0.5, 0.0, 1.0], dtype=F64)
    p = torch.tensor([3.0, 2.0, 1.0], dtype=F64)

    def loss_fn(self, params, buffers, batch, key):
        kind, target = batch
        away = params - target
        quadratic = 0.5 * (away @ self.a * away).sum(-1)
        return torch.where(kind == 0, quadratic, 0.5 * away.square().sum(-1))

    def tasks(self, n=1):
        zero = torch.zeros(n, 1, dtype=torch.int64)
        return (zero, self.s.expand(n, 1, 3)), (zero + 1, self.t.expand(n, 1, 3))

    def closed_form(self, strength):
        h = self.a + strength * torch.eye(3, dtype=F64)
        fast = torch.linalg.solve(h, self.a @ self.s + strength * self.p)
        return strength * torch.linalg.solve(h, fast - self.t), fast

    def grad_fn(self, **options):
        return imaml(self.loss_fn, optim.sgd(0.3), 200, strength=0.8, tol=1e-8, **options)

    def test_equals_the_closed_form(self):
        estimate = self.grad_fn()(self.p, {}, self.tasks(2), random.key(0))
        want, fast = self.closed_form(0.8)
        assert_trees_close(estimate.grads, want, 1e-8)
        adapted = self.grad_fn().adapt(
            self.p, {}, tree.map(lambda x: x[0], self.tasks()[0]), random.key(0)
        )
        assert_trees_close(adapted.params, fast, 1e-8)

    def test_jit_and_chunk(self):
        grad_fn = imaml(self.loss_fn, optim.sgd(0.4), 1, tol=9.0, solver=cg(maxiter=3))
        assert_jit_equal(grad_fn, self.p, {}, self.tasks(2), random.key(0), rtol=1e-9)
        whole, parts = (
            self.grad_fn(chunk=c)(self.p, {}, self.tasks(3), random.key(0)) for c in (None, 2)
        )
        assert_trees_close(parts, whole, 1e-10)

    def test_too_few_steps_give_no_gradient(self):
        grad_fn = imaml(self.loss_fn, optim.sgd(0.01), 1, tol=1e-4)
        assert grad_fn(self.p, {}, self.tasks(), random.key(0)).grads.isnan().all()


def test_bilevel_gradient_equals_the_closed_form_and_keeps_warm():
    ridge = TestRidge()

    def inner(w, h, batch, key):
        x, y = batch
        return 0.5 * (x @ w - y).square().sum() + 0.5 * h["l2"] * w.square().sum()

    def solve(w, h, batch, key):
        return ridge.solve(h["l2"], batch[0])

    def outer(w, h, batch, key):
        return (w - batch).square()

    grad_fn = bilevel(inner, outer, solve)
    args = {"l2": ridge.lam}, torch.zeros(4, dtype=F64), ((X, Y), VAL), random.key(0)
    estimate = assert_pure(grad_fn, *args)
    w = ridge.solve(ridge.lam, X)
    want = (2 * (w - VAL) * ridge.slope()).mean()
    assert_trees_close(estimate.grads["l2"], want, 1e-8)
    assert_trees_close(estimate.buffers, w, 1e-10)
    assert_trees_close(estimate.loss, (w - VAL).square().mean(), 1e-10)
    short = bilevel(inner, outer, solve, solver=cg(maxiter=5))
    assert_jit_equal(short, *args, rtol=1e-8)
