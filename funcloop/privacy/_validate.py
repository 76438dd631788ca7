"""Modules that break differential privacy, by path, each with its fix."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class Finding(NamedTuple):
    """One module.

    Attributes:
        path: Its path.
        module: The name of its class.
        reason: What it does.
        fix: What to use instead.
    """

    path: str
    module: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path or 'the module itself'} ({self.module}): {self.reason}; {self.fix}"


def validate(net: nn.Module) -> list[Finding]:
    """What in a module breaks the guarantee of DP-SGD; empty where nothing is known to.

    Looked for are modules through which examples see each other, and modules that keep something of
    the data without noise. `persample.check_independence` measures the first in any code.

    >>> for finding in validate(nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8))):
    ...     print(finding)
    1 (BatchNorm1d): the statistics mix the examples of a batch; use GroupNorm(8, 8), or freeze its
    statistics: train={"1": False, "": True}
    """
    findings = []
    for path, module in net.named_modules():
        for reason, fix in _faults(path, module):
            findings.append(Finding(path, type(module).__name__, reason, fix))
    return findings


def _faults(path: str, module: nn.Module) -> list[tuple[str, str]]:
    faults = []
    if isinstance(module, _INSTANCE_NORMS):
        if module.track_running_stats:
            faults.append(
                ("running statistics keep the data without noise", "use track_running_stats=False")
            )
    elif isinstance(module, _BATCH_NORMS):
        groups = _groups(module.num_features)
        fix = f"use GroupNorm({groups}, {module.num_features})"
        if module.track_running_stats:
            fix += f', or freeze its statistics: train={{"{path}": False, "": True}}'
        faults.append(("the statistics mix the examples of a batch", fix))
    elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if module.max_norm is not None:
            faults.append(("max_norm rescales the rows that the data name", "use max_norm=None"))
        if module.scale_grad_by_freq:
            faults.append(
                ("scale_grad_by_freq counts over the batch", "use scale_grad_by_freq=False")
            )
    elif _observes(module):
        faults.append(
            ("it records the range of the data", "use a fixed or a learned range (ops.lsq)")
        )
    return faults


def _groups(channels: int) -> int:
    """As many groups as divide the channels, at most 32 as GroupNorm's paper has it."""
    return max(g for g in range(1, min(32, channels) + 1) if channels % g == 0)


def _observes(module: nn.Module) -> bool:
    """Whether it is one of torch's observers; their classes are only there where torch.ao is."""
    names = {kind.__name__ for kind in type(module).__mro__}
    return "ObserverBase" in names or (
        "FakeQuantizeBase" in names and hasattr(module, "activation_post_process")
    )
