"""Which modules run in training mode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from funcloop._errors import ArgumentError, StructureError
from funcloop.stateless import stateless
from tests.laws import assert_trees_equal


class Modes(nn.Module):
    """Says in which mode it and its children run."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm1d(2)))
        self.head = nn.BatchNorm1d(2)
        self.twin = self.head

    def forward(self, x: Tensor) -> tuple[Tensor, list[bool]]:
        return self.head(self.body(x)), [m.training for m in self.modules()]


@pytest.mark.parametrize(
    ("train", "flags"),
    [
        (True, [True] * 6),
        (False, [False] * 6),
        ({"body": False, "": True}, [True, False, False, False, False, True]),
        ({"body.*": False, "": True}, [True, True, False, False, False, True]),
        ({"body.1": True, "body": False, "*": True}, [True, False, False, True, True, True]),
        ({"*ead": True, "": False}, [False, False, False, False, False, True]),
    ],
    ids=str,
)
def test_the_first_match_decides(train, flags: list[bool]):
    net = Modes()
    model = stateless(net)
    (_, seen), after = model.apply(*model.init(), torch.ones(4, 2), train=train)
    assert seen == flags
    assert all(m.training for m in net.modules())
    for path, flag in zip(model.paths, flags, strict=True):
        count = after.get(f"{path}.num_batches_tracked")
        if count is not None:
            assert_trees_equal(count, torch.tensor(int(flag)))


@pytest.mark.parametrize(
    ("train", "kind", "message"),
    [
        ({"body": False}, StructureError, r"no pattern of \['body'\] matches ''"),
        ({"": True, "body": False}, StructureError, r"\['body'\] decide for none"),
        ({"bodi": False, "": True}, StructureError, r"\['bodi'\] decide for none"),
        (1, ArgumentError, "a bool, or a mapping"),
        ({"": 1}, ArgumentError, "a bool, or a mapping"),
    ],
)
def test_what_decides_nothing_is_refused(train, kind, message: str):
    model = stateless(Modes())
    with pytest.raises(kind, match=message):
        model.apply(*model.init(), torch.ones(4, 2), train=train)
