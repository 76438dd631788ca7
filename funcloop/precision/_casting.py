"""Which functions of torch run in low precision, and which in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from funcloop._pytree import PyTree, tree_map

#: Products: in the compute dtype, whatever they are given, so that a float32 input or a frozen
#: weight among the buffers meets no weight of another dtype.
_PRODUCTS = frozenset(
    [
        *("linear", "bilinear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "einsum"),
        *("addmm", "addbmm", "baddbmm", "addmv", "tensordot", "chain_matmul", "multi_dot"),
        *("conv1d", "conv2d", "conv3d", "convolution", "conv_tbc"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("scaled_dot_product_attention", "multi_head_attention_forward"),
        *("lstm", "gru", "rnn_tanh", "rnn_relu"),
        *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    ]
)
#: Normalisation: in float32; the result goes on in the dtype of the first argument. Members 1 and 2
#: of the first two are the running statistics, which are written in place and hence never cast.
_NORMS = frozenset(
    [
        *("batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm"),
        *("local_response_norm", "normalize"),
    ]
)
_WITH_STATISTICS = ("batch_norm", "instance_norm")
#: Losses, beside all that end in `_loss`, and what they are made of: in float32 to the end.
_LOSSES = frozenset(
    [
        *("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"),
        *("log_softmax", "logsumexp", "logsigmoid", "cosine_similarity", "pairwise_distance"),
    ]
)


class Casting(TorchFunctionMode):
    """Inside: torch's functions run in the dtypes that `Policy` says.

    Args:
        compute: The dtype of products.
        originals: By the identity of a cast param: it, and what it was cast from. A norm layer
            takes the latter, without the rounding of the cast.
    """

    def __init__(
        self, compute: torch.dtype, originals: Mapping[int, tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        self._compute, self._originals = compute, originals

    def again(self) -> Casting:
        """A mode that does the same, for a computation that is repeated later."""
        return Casting(self._compute, self._originals)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _PRODUCTS:
            args, kwargs = _both(self._to_compute, args, kwargs)
        elif name in _NORMS:
            return self._norm(func, name, args, kwargs)
        elif name in _LOSSES or name.endswith("_loss"):
            args, kwargs = _both(self._to_float32, args, kwargs)
        return func(*args, **kwargs)

    def _norm(
        self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        statistics = (1, 2, "running_mean", "running_var") if name in _WITH_STATISTICS else ()

        def wide(place: int | str, value: Any) -> Any:
            return value if place in statistics else on_floating(self._to_float32, value)

        result = func(
            *[wide(place, value) for place, value in enumerate(args)],
            **{place: wide(place, value) for place, value in kwargs.items()},
        )
        dtype = (args[0] if args else kwargs["input"]).dtype
        return result.to(dtype)

    def _to_compute(self, x: Tensor) -> Tensor:
        return x.to(self._compute)

    def _to_float32(self, x: Tensor) -> Tensor:
        _, x = self._originals.get(id(x), (x, x))
        return x.to(torch.promote_types(x.dtype, torch.float32))


def _both(
    f: Callable[[Tensor], Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return on_floating(f, (tuple(args), dict(kwargs)))


def on_floating(f: Callable[[Tensor], Tensor], value: PyTree) -> Any:
    """`f` of every real floating tensor of a tree, the other leaves as they are."""
    return tree_map(lambda x: f(x) if isinstance(x, Tensor) and x.is_floating_point() else x, value)
