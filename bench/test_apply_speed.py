"""What does a pure call cost in eager mode, beside `functional_call` and the module itself?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from funcloop.stateless import stateless


class Block(nn.Module):
    """The basic block of a residual network (He et al. 2015, arXiv:1512.03385)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.short = nn.Sequential()
        if stride > 1:
            self.short = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.relu(y + self.short(x))


def resnet18() -> nn.Sequential:
    """62 parameters with 11.7 million elements, and 60 buffers."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    strides = (1, 1, 2, 1, 2, 1, 2, 1)
    blocks = [Block(*ends, stride) for *ends, stride in zip(widths, widths[1:], strides)]  # noqa: B905
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_apply_at_the_size_of_resnet18(compare, train: bool):
    net = resnet18().train(train)
    model = stateless(net)
    params, buffers = model.init()
    assert len(params) == 62
    both = {**params, **buffers}
    x = torch.randn(8, 3, 64, 64)
    with torch.no_grad():
        timings = compare(
            f"one eager forward of ResNet-18, {'training' if train else 'evaluation'}",
            {
                "apply": lambda: model.apply(params, buffers, x, train=train),
                "functional_call": lambda: torch.func.functional_call(net, both, (x,)),
                "the module": lambda: net(x),
            },
            rounds=20,
        )
    assert timings.ratios["functional_call"] <= 1.15
    assert timings.ratios["the module"] <= 1.5
