"""`validate` names each module that breaks the guarantee, and its fix works."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from funcloop import persample, privacy
from funcloop.stateless import stateless


@pytest.mark.parametrize(
    ("module", "reason", "fix"),
    [
        (nn.BatchNorm2d(6), "mix", r"GroupNorm\(6, 6\)"),
        (nn.BatchNorm1d(64), "mix", r"GroupNorm\(32, 64\)"),
        (nn.SyncBatchNorm(4), "mix", "GroupNorm"),
        (nn.BatchNorm1d(4, track_running_stats=False), "mix", "GroupNorm"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "running statistics", "track_running"),
        (nn.Embedding(4, 2, max_norm=1.0), "max_norm", "max_norm=None"),
        (nn.EmbeddingBag(4, 2, scale_grad_by_freq=True, mode="sum"), "counts", "freq=False"),
        (torch.ao.quantization.MinMaxObserver(), "records", "fixed"),
    ],
)
def test_each_fault_is_found(module, reason, fix):
    net = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"inner": module}))
    (finding,) = privacy.validate(net)
    assert finding.path == "1.inner"
    assert reason in finding.reason
    assert __import__("re").search(fix, finding.fix)
    assert "1.inner" in str(finding)


def test_what_is_sound_passes():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.Dropout(), nn.LSTM(2, 2),
        nn.TransformerEncoderLayer(4, 2), nn.Embedding(4, 2, padding_idx=0),
    )  # fmt: skip
    assert privacy.validate(net) == []


def test_the_fix_for_batch_norm_works():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    (finding,) = privacy.validate(net)
    train = eval(finding.fix.partition("train=")[2])
    model = stateless(net)
    params, buffers = model.init()

    def loss_fn(params, buffers, batch, key):
        return model.apply(params, buffers, batch, train=train)[0].square().sum(1)

    persample.clipped(loss_fn, 1.0)(params, buffers, torch.ones(2, 3), None)
