"""What a tensor is quantized to: bits, range and which elements share a scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from funcloop._errors import ArgumentError, ShapeError


@dataclass(frozen=True)
class QuantSpec:
    """A quantization scheme; a constant of a jitted function.

    Attributes:
        bits: 2 to 8.
        signed: Codes from `-2^(bits-1)` to `2^(bits-1) - 1`; unsigned from 0 to `2^bits - 1`.
        symmetric: Observers keep the zero point at 0 and divide the largest magnitude by
            `quant_max`. Otherwise the range observed, zero included, is spread over all codes.
        narrow: Leave out the most negative code, so that the range is symmetric too.
        axis: The channel dimension, with one scale for each index; None for one scale in all.
            With `group_size` it is the dimension that is cut into groups, the last by default.
        group_size: So many neighbours along `axis` share a scale, for each index of the others.

    >>> spec = QuantSpec(bits=4, narrow=True)
    >>> spec.quant_min, spec.quant_max
    (-7, 7)
    >>> QuantSpec(bits=9)
    Traceback (most recent call last):
    funcloop._errors.ArgumentError: a code has 2 to 8 bits: bits=9. Remedy: ...
    """

    bits: int = 8
    signed: bool = True
    symmetric: bool = True
    narrow: bool = False
    axis: int | None = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise ArgumentError(
                "a code has 2 to 8 bits", f"bits={self.bits}", "binarize has one bit"
            )
        if self.narrow and not self.signed:
            raise ArgumentError(
                "a narrow range leaves out the most negative code",
                "an unsigned spec has none",
                "drop narrow=, or use signed=True",
            )
        if self.group_size is not None and self.group_size < 1:
            raise ArgumentError(
                "a group has at least one element",
                f"group_size={self.group_size}",
                "give the number of neighbours that share a scale",
            )

    @property
    def quant_min(self) -> int:
        """The smallest code."""
        return self.narrow - 2 ** (self.bits - 1) if self.signed else 0

    @property
    def quant_max(self) -> int:
        """The largest code."""
        return 2 ** (self.bits - self.signed) - 1

    def scale_shape(self, shape: torch.Size) -> torch.Size:
        """The shape of the scale for a tensor of this shape.

        >>> import torch
        >>> QuantSpec(axis=0).scale_shape(torch.Size([3, 8]))
        torch.Size([3])
        >>> QuantSpec(group_size=4).scale_shape(torch.Size([3, 8]))
        torch.Size([3, 2])

        Raises:
            ShapeError: the tensor lacks the axis, or its groups do not come out even.
        """
        if self.axis is None and self.group_size is None:
            return torch.Size([])
        axis = self._axis(shape)
        if self.group_size is None:
            return torch.Size([shape[axis]])
        if shape[axis] % self.group_size:
            raise ShapeError(
                "groups divide their dimension evenly",
                f"dimension {axis} of shape {tuple(shape)} in groups of {self.group_size}",
                "choose a divisor, or pad the tensor",
            )
        return torch.Size([*shape[:axis], shape[axis] // self.group_size, *shape[axis + 1 :]])

    def blocks(self, x: Tensor) -> Tensor:
        """`x` with its groups as a dimension of their own, as `spread` fits it."""
        if self.group_size is None:
            return x
        axis, shape = self._axis(x.shape), x.shape
        groups = self.scale_shape(shape)[axis]
        return x.reshape(*shape[:axis], groups, self.group_size, *shape[axis + 1 :])

    def spread(self, scale: Tensor, shape: torch.Size, name: str = "scale") -> Tensor:
        """A scale, or 0-d, reshaped to broadcast against `blocks(x)` for x of this shape.

        Raises:
            ShapeError: the scale has not the shape that `scale_shape` says.
        """
        want = self.scale_shape(shape)
        ones = [1] * (len(shape) + (self.group_size is not None))
        if not scale.ndim:
            # of full rank: torch 2.13 fails on a product with a 0-d tensor under an empty vmap
            return scale.reshape(ones)
        if scale.shape != want:
            raise ShapeError(
                f"the {name} has one element for what shares it, shape {tuple(want)}",
                f"{name} of shape {tuple(scale.shape)} for a tensor of shape {tuple(shape)}",
                "take it from an observer with the same spec",
            )
        axis = self._axis(shape)
        if self.group_size is None:
            ones[axis] = shape[axis]
            return scale.reshape(ones)
        return scale.unsqueeze(axis + 1)

    def rows(self, x: Tensor) -> Tensor:
        """`x` with all that share a scale as the last dimension: (*scale_shape, N)."""
        if self.axis is None and self.group_size is None:
            return x.reshape(x.numel())
        axis = self._axis(x.shape)
        if self.group_size is None:
            return x.movedim(axis, 0).reshape(x.shape[axis], x.numel() // max(1, x.shape[axis]))
        return self.blocks(x).movedim(axis + 1, -1)

    def _axis(self, shape: torch.Size) -> int:
        axis = -1 if self.axis is None else self.axis
        if not -len(shape) <= axis < len(shape):
            raise ShapeError(
                "a spec's axis is a dimension of the tensor",
                f"axis {axis} of shape {tuple(shape)}",
                "choose another axis",
            )
        return axis % len(shape)
