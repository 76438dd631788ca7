import torch

from funcloop import optim
from funcloop._types import Transform
from tests.laws import assert_trees_equal
from tests.optim.trajectories import gradients, start


def test_chain_is_associative_and_has_an_identity():
    params = start()
    (grads,) = gradients(params, 1)
    a, b, c = optim.clip_by_global_norm(0.5), optim.trace(0.9), optim.scale(-0.1)
    forms = [
        optim.chain(a, b, c),
        optim.chain(optim.chain(a, b), c),
        optim.chain(a, optim.chain(b, c), optim.chain()),
    ]
    results = [tx.update(grads, tx.init(params), params)[0] for tx in forms]
    assert_trees_equal(results[1], results[0])
    assert_trees_equal(results[2], results[0])


def test_extra_reaches_links_that_ask_and_plain_ones_are_accepted():
    seen = []

    def asking(updates, state, params, *, value):
        seen.append(value)
        return updates, state

    def plain(updates, state, params=None):
        return updates, state

    tx = optim.chain(
        Transform(lambda p: (), asking), Transform(lambda p: (), plain), optim.sgd(0.1)
    )
    params = {"w": torch.ones(2)}
    tx.update(params, tx.init(params), params, value=torch.tensor(3.0), unknown=1)
    assert seen == [torch.tensor(3.0)]
