"""Everything that a differentiable function has to be, checked and reported by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from funcloop._errors import ArgumentError
from funcloop._pytree import PyTree
from funcloop.testing._case import Case
from funcloop.testing._checks import CHECKS
from funcloop.testing._grads import GradCheck

_NAMES = ("gradcheck", "gradgradcheck", "jvp(jvp)", *CHECKS)


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        check: The name of the check.
        status: `"ok"`, `"FAIL"` or `"skip"`.
        message: What differs and where, or why it was skipped.
    """

    check: str
    status: str
    message: str = ""


class Report(NamedTuple):
    """What `check_function` found; its string is a table to read.

    Attributes:
        name: Of the function.
        samples: How many sample calls it was checked on.
        findings: One for each check.
    """

    name: str
    samples: int
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that fail."""
        return tuple(f.check for f in self.findings if f.status == "FAIL")

    def __str__(self) -> str:
        lines = [f"{self.name}, {self.samples} samples"]
        for check, status, message in self.findings:
            first, *rest = message.splitlines() or [""]
            lines.append(f"  {status:4}  {check:13}  {first}".rstrip())
            lines += [" " * 23 + line for line in rest]
        return "\n".join(lines)


class CheckFailed(AssertionError):
    """Some checks fail; `report` says which and how, and is the message."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def check_function(
    f: Callable[..., PyTree],
    sample_inputs: Iterable[Sequence[PyTree]],
    *,
    surrogate: Callable[..., PyTree] | None = None,
    skip: Mapping[str, str] | None = None,
) -> Report:
    """Check that a function, with a custom backward or not, is right under every transform.

    The checks, by name:
        gradcheck, gradgradcheck: first and second derivatives are those of the differences (of
            `surrogate`, where there is one), in forward and reverse mode and over each other.
        jvp(jvp): the same for forward over forward. There torch 2.13 drops the inner derivative of
            every plain autograd.Function; those of `ops.function` keep it.
        pure, deterministic: no argument is changed and no random number drawn.
        autograd: `backward()` agrees with torch.func.
        save: what backward needs is saved with `save_for_backward`.
        jvp: forward mode is the transpose of reverse mode.
        linear: backward is linear in the gradient that it is given.
        vmap, vmap(grad), grad(vmap), jvp(vmap): batching is the loop, for every choice of in_dims.
        jit: compiled is eager, for the value, gradient, second derivative and vmapped gradient.
        dtype: dtypes and devices are kept.
        strides: inputs and gradients that are not contiguous give the same.
        empty: a batch without members gives results without members.

    Args:
        f: `(*args) -> output`, any pytrees.
        sample_inputs: Calls to try, each a sequence of arguments, away from kinks. Two or three
            small ones do.
        surrogate: For a straight-through function: the function whose derivative it claims.
        skip: Checks to leave out, each with the reason, which the report repeats.

    Returns:
        The report, where nothing fails.

    Raises:
        CheckFailed: an AssertionError with the report as `report` and as its message.

    >>> import torch
    >>> from funcloop import ops
    >>> report = check_function(ops.ste_round, [(torch.tensor([0.2, 1.7]),)], surrogate=lambda x: x)
    >>> report.failed
    ()
    >>> wrong = ops.function(torch.sin, lambda grad, output, x: grad * x.sin())
    >>> check_function(wrong, [(torch.tensor([0.2, 1.7]),)])
    Traceback (most recent call last):
    funcloop.testing._check_function.CheckFailed: sin, 1 samples
      FAIL  gradcheck      sample 0: jvp by 0 gives ..., and the differences say ...
    ...
    """
    skips = dict(skip or {})
    unknown = sorted(skips.keys() - set(_NAMES))
    if unknown:
        raise ArgumentError(
            "a check is skipped by its name", f"{unknown}", f"use one of {', '.join(_NAMES)}"
        )
    samples = [tuple(args) for args in sample_inputs]
    if not samples:
        raise ArgumentError("a check needs a sample", "no sample_inputs", "give one call")
    modes = ("rev",) if "jvp" in skips else ("fwd", "rev")
    checks: dict[str, Callable[[Case], None]] = {
        "gradcheck": lambda case: GradCheck(f, case.args, surrogate, modes).first(),
        "gradgradcheck": lambda case: GradCheck(f, case.args, surrogate, modes).second(),
        "jvp(jvp)": lambda case: GradCheck(f, case.args, surrogate, modes).forward_twice(),
        **CHECKS,
    }
    findings = tuple(
        Finding(name, "skip", skips[name]) if name in skips else _run(name, check, f, samples)
        for name, check in checks.items()
    )
    report = Report(getattr(f, "__name__", type(f).__name__), len(samples), findings)
    if report.failed:
        raise CheckFailed(report)
    return report


def _run(
    name: str,
    check: Callable[[Case], None],
    f: Callable[..., PyTree],
    samples: Sequence[Sequence[PyTree]],
) -> Finding:
    for number, args in enumerate(samples):
        try:
            check(Case(f, args))
        except AssertionError as error:
            return Finding(name, "FAIL", f"sample {number}: {error}")
        except Exception as error:  # whatever a wrong function raises is a finding
            return Finding(name, "FAIL", f"sample {number}: {type(error).__name__}: {error}")
    return Finding(name, "ok")
