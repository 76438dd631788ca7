"""Products in the faster library: right in every form, decided by measurement, and left alone."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import funcloop as fl
from funcloop._pytree import flatten
from funcloop.compile import _calibration, _products, load_compiled
from funcloop.compile._calibration import (
    CLEAR,
    LOST,
    ROUNDS,
    SMALL,
    class_of,
    faster_in_onednn,
    machine,
)
from funcloop.compile._onednn import OPERATORS, Product
from funcloop.compile._products import choose_products
from funcloop.compile._trace import trace

ANY = set(OPERATORS.values())
g = torch.Generator().manual_seed(0)


def graph_of(f, *args: Tensor):
    return trace(f, *flatten((args, {}))).graph


def targets(graph) -> set:
    return {node.target for node in graph.graph.nodes if node.op == "call_function"}


def chosen(f, *args: Tensor):
    """The graph with every product that can be replaced."""
    graph = graph_of(f, *args)
    choose_products(graph, set)
    graph.recompile()
    return graph


def factor(rows: int, columns: int, form: str, batch: tuple[int, ...] = ()) -> Tensor:
    """N: row by row; T: column by column; P: rows in a wider matrix."""
    if form == "T":
        return torch.randn(*batch, columns, rows, generator=g).transpose(-1, -2)
    return torch.randn(*batch, rows, columns + 3 * (form == "P"), generator=g)[..., :columns]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "funcloop" / "products.json"


@pytest.mark.parametrize("left", "NTP")
@pytest.mark.parametrize("right", "NTP")
@pytest.mark.parametrize("sizes", [(5, 7, 3), (1, 4, 6), (6, 1, 1), (33, 64, 17)])
def test_every_form_is_the_same_product(left: str, right: str, sizes: tuple[int, int, int]):
    m, k, n = sizes
    a, b = factor(m, k, left), factor(k, n, right)
    c, d = factor(m, k, left, (3,)), factor(k, n, right, (3,))
    bias = torch.randn(n, generator=g)
    cases = {"mm": (a, b), "bmm": (c, d), "addmm": (bias, a, b)}
    for name, args in cases.items():
        f = getattr(torch, name)
        graph = chosen(f, *args)
        assert OPERATORS[name] in targets(graph)
        got = graph(*args)[0]
        torch.testing.assert_close(got, f(*args), rtol=1e-5, atol=1e-5)
        assert got.stride() == f(*args).stride()


def test_a_training_gradient_with_every_product_replaced():
    net = nn.Sequential(nn.Linear(7, 12), nn.Tanh(), nn.Linear(12, 5))
    model = fl.stateless(net)
    gradient = fl.value_and_grad(fl.supervised(model, F.cross_entropy))
    batch = torch.randn(6, 7, generator=g), torch.randint(5, (6,), generator=g)
    args = *model.init(), batch, fl.random.key(0)
    traced = trace(gradient, *flatten((args, {})))
    leaves = [x for x in flatten(args)[0] if isinstance(x, Tensor)]
    want = traced.graph(*leaves)
    choose_products(traced.graph, set)
    traced.graph.recompile()
    assert not targets(traced.graph) & set(_products._NAMES)
    torch.testing.assert_close(traced.graph(*leaves), want, rtol=1e-5, atol=1e-6)


def test_compiled_by_inductor_and_saved(tmp_path, monkeypatch):
    """One compilation: forced, donated, in a transposed form, and from a package."""
    every = lambda graph: choose_products(graph, set)  # noqa: E731  # one formula
    monkeypatch.setattr("funcloop.compile._compiled_graph.choose_products", every)

    def step(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.addmm(w[0], x, w.t()).relu()
        return w - 0.1 * (y.t() @ x), torch.bmm(x.expand(2, 8, 8), w.expand(2, 8, 8)).sum()

    w, x = torch.randn(8, 8, generator=g), torch.randn(8, 8, generator=g)
    want = step(w, x)
    compiled = fl.jit(step, donate=0).lower(w, x).compile()
    torch.testing.assert_close(compiled(w.clone(), x), want, rtol=1e-5, atol=1e-5)
    compiled.save(tmp_path / "step.pt2")
    again = load_compiled(tmp_path / "step.pt2")
    torch.testing.assert_close(again(w.clone(), x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "args",
    [
        (torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(3, 2, dtype=torch.bfloat16)),
        (torch.ones(2, 3, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64)),
        (torch.ones(2, 3, device="meta"), torch.ones(3, 2, device="meta")),
        (torch.ones(0, 3), torch.ones(3, 2)),
        (torch.ones(2, 0), torch.ones(0, 2)),
        (torch.ones(4, 6)[:, ::2], torch.ones(3, 2)),
        (torch.ones(1, 3).expand(2, 3), torch.ones(3, 2)),
    ],
    ids=["bfloat16", "float64", "device", "no rows", "no columns", "every other", "expanded"],
)
def test_what_is_no_candidate(args: tuple[Tensor, Tensor]):
    assert not targets(chosen(torch.mm, *args)) & ANY


def test_scaled_and_wide_biases_stay():
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    scaled = chosen(lambda c, a, b: torch.addmm(c, a, b, beta=2.0), torch.ones(4), a, b)
    whole = chosen(torch.addmm, torch.ones(2, 4), a, b)
    spread = chosen(torch.addmm, torch.ones(1), a, b)
    assert not (targets(scaled) | targets(whole) | targets(spread)) & ANY


def test_a_symbolic_size_stays():
    graph = make_fx(lambda x: x @ x.t(), tracing_mode="symbolic")(torch.ones(3, 2))
    choose_products(graph, set)
    graph.recompile()
    assert torch.ops.aten.mm.default in targets(graph)


BIG = Product("mm", (1, 512, 512, 512), (False, True))


def pretend(monkeypatch, answer: bool | None, load: float = 0.0) -> list[Product]:
    """This is the answer, whatever is measured; returns what has been."""
    measured = []
    monkeypatch.setattr(_calibration.os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    monkeypatch.setattr(_calibration, "measure", lambda p: measured.append(p) or answer)
    return measured


@pytest.mark.parametrize("answer", [True, False])
def test_an_answer_holds_for_the_class(answer: bool, cache, monkeypatch):
    measured = pretend(monkeypatch, answer)
    alike = BIG._replace(sizes=(1, 500, 530, 512))
    assert faster_in_onednn([BIG, BIG]) == ({BIG} if answer else set())
    assert faster_in_onednn([alike]) == ({alike} if answer else set())
    assert measured == [BIG]
    assert json.loads(cache.read_text()) == {machine(): {class_of(BIG): answer}}


def test_an_open_question_is_asked_again(cache, monkeypatch):
    measured = pretend(monkeypatch, None)
    assert faster_in_onednn([BIG]) == faster_in_onednn([BIG]) == set()
    assert measured == [BIG, BIG]
    assert not cache.exists()


@pytest.mark.parametrize(
    ("ratios", "answer", "rounds"),
    [
        ([2.0] * ROUNDS, True, ROUNDS),
        ([CLEAR] * ROUNDS, True, ROUNDS),
        ([1.1] * ROUNDS, False, LOST),
        ([2.0, 0.5] * ROUNDS, False, 2 * LOST),
        ([2.0] * (ROUNDS - 1) + [1.0], None, ROUNDS),
    ],
)
def test_only_agreeing_rounds_decide(ratios, answer, rounds: int, monkeypatch):
    """A busy machine makes either rival look fast at times."""
    called = []
    right = _calibration.OPERATORS["mm"]
    spy = lambda *args: called.append("onednn") or right(*args)  # noqa: E731  # one formula
    monkeypatch.setitem(_calibration.OPERATORS, "mm", spy)
    timed = []

    def seconds(run, calls: int) -> float:
        called.clear()
        run()
        timed.append(run)
        ratio = ratios[len(timed) // 2 - 1]  # the first call says how often to repeat
        return 1.0 if called else ratio

    monkeypatch.setattr(_calibration, "seconds", seconds)
    assert _calibration.measure(BIG) is answer
    assert len(timed) == 1 + 2 * rounds


def test_a_busy_machine_measures_nothing(cache, monkeypatch):
    measured = pretend(monkeypatch, True, load=1e6)
    assert faster_in_onednn([BIG]) == set()
    assert measured == []
    assert not cache.exists()


def test_small_products_are_not_measured(cache, monkeypatch):
    measured = pretend(monkeypatch, True)
    assert faster_in_onednn([Product("mm", (1, 8, 8, 8), (False, False))]) == set()
    assert measured == []
    assert not cache.exists()


def test_another_number_of_threads_is_another_machine(cache, monkeypatch):
    measured = pretend(monkeypatch, True)
    faster_in_onednn([BIG])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    faster_in_onednn([BIG])
    assert len(measured) == 2
    assert len(json.loads(cache.read_text())) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "null"])
def test_a_broken_cache_is_measured_again(text: str, cache, monkeypatch):
    cache.parent.mkdir()
    cache.write_text(text)
    pretend(monkeypatch, True)
    assert faster_in_onednn([BIG]) == {BIG}
    assert machine() in json.loads(cache.read_text())


def test_an_answer_that_is_none_is_measured_again(cache, monkeypatch):
    cache.parent.mkdir()
    cache.write_text(json.dumps({machine(): {class_of(BIG): 1.2, "another": True}}))
    pretend(monkeypatch, False)
    assert faster_in_onednn([BIG]) == set()
    assert json.loads(cache.read_text()) == {machine(): {class_of(BIG): False, "another": True}}


def test_a_cache_that_cannot_be_written(cache, monkeypatch):
    cache.parent.parent.joinpath("funcloop").write_text("a file where the folder should be")
    pretend(monkeypatch, True)
    assert faster_in_onednn([BIG]) == {BIG}


def test_patience_ends(cache, monkeypatch):
    monkeypatch.setattr(_calibration, "PATIENCE", 0.0)
    assert faster_in_onednn([BIG]) == set()
    assert not cache.exists()


def test_the_switch(cache, monkeypatch):
    monkeypatch.setenv("FUNCLOOP_PRODUCTS", "0")
    assert not targets(chosen(torch.mm, torch.ones(2, 3), torch.ones(3, 2))) & ANY


@pytest.mark.parametrize("operator", ["mm", "addmm", "bmm"])
@pytest.mark.parametrize("transposed", [(False, True), (True, False)])
def test_measuring(operator: str, transposed: tuple[bool, bool]):
    """A measurement ends, and draws nothing from the global generator."""
    product = Product(operator, (3 if operator == "bmm" else 1, 64, 32, 48), transposed)
    before = torch.get_rng_state()
    assert _calibration.measure(product) in (True, False, None)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_wrong_library_is_never_chosen(monkeypatch):
    wrong = lambda a, b: 1.01 * (a @ b)  # noqa: E731  # one formula
    monkeypatch.setitem(_calibration.OPERATORS, "mm", wrong)
    assert _calibration.measure(BIG) is False


def test_large_products_are_measured_smaller():
    factors = _calibration._factors(Product("mm", (1, 2**12, 2**11, 2**13), (True, False)))
    (m, k), (_, n) = (factor.shape for factor in factors)
    assert SMALL < 2 * m * k * n <= _calibration.LARGE
    assert factors[0].stride() == (1, m)


def test_jit_asks_and_keeps_what_is_not_faster(cache, monkeypatch):
    """The decision is taken for each graph, from the traced sizes and forms."""
    measured = pretend(monkeypatch, False)
    x, w = torch.randn(256, 128, generator=g), torch.randn(256, 128, generator=g)
    out = fl.jit(lambda x, w: x @ w.t(), backend="aot_eager")(x, w)
    torch.testing.assert_close(out, x @ w.t())
    assert measured == [Product("mm", (1, 256, 128, 256), (False, True))]
