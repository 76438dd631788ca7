"""One leaf as facts in JSON and, for a tensor, as plain contiguous numbers beside them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from funcloop._errors import CheckpointError

#: Facts of a leaf: `{"float": "0.5"}`, or name, dtype, shape and perhaps strides of a tensor.
Facts = Mapping[str, Any]

#: JSON keeps bools, ints and strings; floats go as text, which has NaN, infinity and every digit.
_NATIVE = {"bool": bool, "int": int, "str": str}
_AS_TEXT = {"float": float, "complex": complex}
_SCALARS = {**_NATIVE, **_AS_TEXT}


def scalar_facts(path: str, leaf: Any) -> Facts:
    """The facts of a Python number or string.

    Raises:
        CheckpointError: it is something else; subclasses count as something else, since they
            would come back as what they are not.
    """
    kind = type(leaf).__name__
    if _SCALARS.get(kind) is not type(leaf):
        raise CheckpointError(
            "a checkpoint holds tensors, numbers, bools and strings",
            f"{path or 'the tree'} is a {type(leaf).__module__}.{type(leaf).__qualname__}",
            "convert it, e.g. with torch.as_tensor, or leave it out",
        )
    return {kind: leaf if kind in _NATIVE else repr(leaf)}


def facts_of(path: str, leaf: Any) -> Facts:
    """The facts of any leaf."""
    return tensor_facts(path, leaf) if isinstance(leaf, Tensor) else scalar_facts(path, leaf)


def described(facts: Facts) -> str:
    """`float32 (2, 3)` for a tensor, `int` for a Python number."""
    if "tensor" in facts:
        return f"{facts['dtype']} {tuple(facts['shape'])}"
    return next(iter(facts))


def scalar(facts: Facts) -> Any:
    """The number or string of these facts."""
    ((kind, value),) = facts.items()
    return _SCALARS[kind](value)


def tensor_facts(name: str, leaf: Tensor) -> Facts:
    """The facts of a tensor that is stored under `name`.

    Strides are kept where `clone` would keep them (channels-last weights): in another layout the
    same kernel may add in another order, and a resumed run would differ in the last bit.
    """
    facts = {"tensor": name, "dtype": dtype_name(leaf), "shape": list(leaf.shape)}
    usual = _row_major(leaf.shape)
    if leaf.stride() != usual:
        strides = torch.empty_like(leaf, device="meta").stride()
        if strides != usual:
            facts["strides"] = list(strides)
    return facts


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor; asking torch takes longer than all the rest."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def dtype_name(leaf: Tensor) -> str:
    """`float32` for torch.float32."""
    return str(leaf.dtype).removeprefix("torch.")


def require_plain(path: str, leaf: Tensor) -> Tensor:
    """The tensor, if its numbers are all that there is to it.

    Raises:
        CheckpointError: it is sparse, quantized, without data, or of a subclass.
        DonationError: it was donated.
    """
    layout = leaf.layout  # a donated tensor refuses even this question
    if layout is not torch.strided:
        problem, remedy = f"is {str(layout).removeprefix('torch.')}", "save it densely: to_dense()"
    elif leaf.is_quantized:
        problem, remedy = f"is {dtype_name(leaf)}", "save its int_repr(), scale and zero point"
    elif leaf.is_meta:
        problem, remedy = "is on the meta device, without data", "give it data"
    elif type(leaf) not in (Tensor, nn.Parameter, nn.Buffer):
        kind = type(leaf)
        problem, remedy = f"is a {kind.__module__}.{kind.__qualname__}", "save a plain torch.Tensor"
    else:
        return leaf
    raise CheckpointError(
        "a checkpoint holds tensors that are nothing but their numbers",
        f"{path or 'the tree'} {problem}",
        remedy,
    )


def stored(leaf: Tensor) -> Tensor:
    """The numbers of a leaf: on the CPU, real."""
    leaf = leaf.detach().cpu().resolve_conj().resolve_neg()
    # safetensors has no complex128, and so no complex at all: one way for both.
    return torch.view_as_real(leaf) if leaf.is_complex() else leaf


def tensor(facts: Facts, numbers: Tensor, device: torch.device) -> Tensor:
    """The leaf of these facts, in memory of its own.

    What safetensors hands out is mapped from the file, at addresses that suit the file; kernels
    that work in vectors may round by address, so that a resumed run needs torch's own memory.
    """
    shape = facts["shape"]
    strides = facts.get("strides") or _row_major(shape)
    dtype = getattr(torch, facts["dtype"])
    leaf = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    target = torch.view_as_real(leaf) if leaf.is_complex() else leaf
    if target.shape != numbers.shape or target.dtype != numbers.dtype:
        raise CheckpointError(
            "a checkpoint describes its tensors as they are",
            f"{facts['tensor']} is {dtype_name(numbers)} {tuple(numbers.shape)}, not as described",
            "take another copy of the file",
        )
    target.copy_(numbers)
    return leaf


def identity(leaf: Any) -> Hashable | None:
    """What leaves that are one and the same tensor share; None for any other leaf."""
    if not isinstance(leaf, Tensor) or leaf.numel() == 0 or leaf.layout is not torch.strided:
        return None
    address = 0 if leaf.is_meta else leaf.untyped_storage().data_ptr()
    if address == 0:
        return None
    flags = (leaf.is_conj(), leaf.is_neg())
    return (address, leaf.storage_offset(), tuple(leaf.shape), leaf.stride(), leaf.dtype, flags)


def raw(leaf: Tensor) -> Tensor:
    """The bytes of a real tensor, uint8 of shape (N,)."""
    flat = leaf.detach().contiguous()
    # A single element may count as contiguous with any stride, and `view` asks for stride one.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype and shape are equal, NaN included."""
    return torch.equal(raw(a), raw(b))
