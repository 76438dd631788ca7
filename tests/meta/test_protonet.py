import pytest
import torch

from funcloop import random
from funcloop._errors import ArgumentError
from funcloop.meta import protonet
from tests.laws import assert_jit_equal, assert_pure, assert_trees_close

F64 = torch.float64
KEY = random.key(0)


def embed(params, buffers, x, key):
    return torch.tanh(x @ params["w"]), buffers


def params():
    return {"w": torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=F64)}


def tasks(n=2):
    g = torch.Generator().manual_seed(1)
    label = torch.tensor([0, 1, 2, 0, 1, 2])
    return tuple((torch.randn(n, 6, 3, generator=g, dtype=F64), label.expand(n, 6)) for _ in "sq")


def naive_loss(params, batch):
    """One task and one class at a time."""
    losses = []
    for xs, ys, xq, yq in zip(*batch[0], *batch[1], strict=True):
        support, query = torch.tanh(xs @ params["w"]), torch.tanh(xq @ params["w"])
        means = torch.stack([support[ys == c].mean(0) for c in range(3)])
        logits = -torch.stack([(query - m).square().sum(-1) for m in means], -1)
        losses.append(torch.nn.functional.cross_entropy(logits, yq))
    return torch.stack(losses).mean()


def test_gradient_equals_the_loop():
    estimate = assert_pure(protonet(embed, 3), params(), {}, tasks(), KEY)
    grads, loss = torch.func.grad_and_value(naive_loss)(params(), tasks())
    assert_trees_close(estimate.grads, grads, 1e-10)
    torch.testing.assert_close(estimate.loss, loss)
    assert 0 <= estimate.metrics["accuracy"] <= 1


def test_jit_and_chunk():
    assert_jit_equal(protonet(embed, 3), params(), {}, tasks(), KEY, rtol=1e-10)
    whole, parts = (protonet(embed, 3, chunk=c)(params(), {}, tasks(3), KEY) for c in (None, 2))
    assert_trees_close(parts, whole, 1e-10)


def test_padding_never_counts_not_even_a_nan():
    (xs, ys), query = tasks()
    weight = torch.ones(2, 7)
    weight[:, 6] = 0
    pad = torch.full((2, 1, 3), torch.nan, dtype=F64)
    padded = torch.cat([xs, pad], 1), torch.cat([ys, ys[:, :1]], 1), weight
    want = protonet(embed, 3).loss_fn(params(), {}, ((xs, ys), query), KEY)[0]
    got = protonet(embed, 3).loss_fn(params(), {}, (padded, query), KEY)[0]
    torch.testing.assert_close(got, want)


def test_a_class_without_examples_is_never_predicted():
    (xs, ys), (xq, yq) = tasks(1)
    task = protonet(embed, 4).adapt(params(), {}, (xs[0], ys[0]), KEY)
    logits = task.logits(embed(params(), {}, xq[0], KEY)[0])
    assert (logits[:, 3] == -torch.inf).all()
    estimate = protonet(embed, 4)(params(), {}, ((xs, ys), (xq, yq)), KEY)
    assert_trees_close(estimate.grads, protonet(embed, 3)(params(), {}, tasks(1), KEY).grads, 1e-10)


def test_refusals():
    with pytest.raises(ArgumentError, match="classes=0"):
        protonet(embed, 0)
    with pytest.raises(ArgumentError, match="'per_step'"):
        protonet(embed, 2, statistics="per_step")
