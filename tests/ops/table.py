"""Every differentiable op with sample calls, and the smooth function whose derivative it claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import ops, random
from tests.cases import generator


class Op(NamedTuple):
    """An op; `surrogate(*args)` makes the surrogate for these arguments, at which it is checked."""

    f: Callable[..., Any]
    samples: list[tuple[Any, ...]]
    surrogate: Callable[..., Callable[..., Any]] | None = None
    skip: Mapping[str, str] = {}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed))


def identity(*_: Any) -> Callable[..., Tensor]:
    return lambda x, *rest: x * 1


def spread(spec: ops.QuantSpec, x: Tensor, scale: Tensor) -> Tensor:
    """A scale in the shape of x, written apart from the ops."""
    if spec.group_size is not None:
        return scale.repeat_interleave(spec.group_size, -1 if spec.axis is None else spec.axis)
    if spec.axis is not None:
        return scale.reshape([-1 if i == spec.axis % x.ndim else 1 for i in range(x.ndim)])
    return scale


def frozen_rounding(spec: ops.QuantSpec, zero_point: int = 0) -> Callable[..., Any]:
    """Fake quantization whose rounding errors and cut-offs are those at the given point."""

    def at(x: Tensor, scale: Tensor) -> Callable[..., Tensor]:
        steps = x.double() / spread(spec, x, scale.double())
        code = steps.round() + zero_point
        error = steps.round() - steps
        low, high = spec.quant_min, spec.quant_max

        def surrogate(x: Tensor, scale: Tensor) -> Tensor:
            s = spread(spec, x, scale)
            inside = x + s * error
            outside = s * (code.clamp(low, high) - zero_point)
            return torch.where((code >= low) & (code <= high), inside, outside)

        return surrogate

    return at


def quantizer(spec: ops.QuantSpec, *shape: int, zero_point: int = 0) -> Op:
    x = 2 * normal(*shape)
    scale = 0.2 + normal(*spec.scale_shape(x.shape), seed=1).abs() / 2
    return Op(
        lambda x, scale: ops.fake_quantize(x, scale, zero_point, spec),
        [(x, scale)],
        frozen_rounding(spec, zero_point),
    )


def lsq_surrogate(spec: ops.QuantSpec) -> Callable[..., Any]:
    frozen = frozen_rounding(spec)

    def at(x: Tensor, step: Tensor) -> Callable[..., Tensor]:
        inner, factor = frozen(x, step), (x.numel() * spec.quant_max) ** -0.5
        # the value of the step is at `step`, and moves by `factor`
        return lambda y, s: inner(y, step.double() + factor * (s - step.double()))

    return at


def lsq_plus_surrogate(spec: ops.QuantSpec) -> Callable[..., Any]:
    inner = lsq_surrogate(spec)

    def at(x: Tensor, step: Tensor, offset: Tensor) -> Callable[..., Tensor]:
        centred = inner(x - offset, step)
        return lambda x, step, offset: centred(x - offset, step) + offset

    return at


def hard_mean(axis: int | None, threshold: float | None) -> Callable[..., Any]:
    """`mean|w| * t` with the mean differentiated and t moving as `clamp(w, -1, 1)`."""

    def at(w: Tensor) -> Callable[..., Tensor]:
        w = w.double()
        dims = [i for i in range(w.ndim) if axis is None or i != axis]
        bound = 0 if threshold is None else threshold * w.abs().mean(dims, keepdim=True)
        kept = (w.abs() > bound).double()
        code = w.sign() * kept

        def surrogate(v: Tensor) -> Tensor:
            mean = (v.abs() * kept).sum(dims, keepdim=True) / kept.sum(dims, keepdim=True)
            return mean * (code + v.clamp(-1, 1) - w.clamp(-1, 1))

        return surrogate

    return at


def pact_surrogate(bits: int) -> Callable[..., Any]:
    def at(x: Tensor, alpha: Tensor) -> Callable[..., Tensor]:
        return lambda x, alpha: torch.minimum(torch.relu(x), alpha)

    return at


def dorefa_surrogate(w: Tensor) -> Callable[..., Tensor]:
    return lambda w: torch.tanh(w) / torch.tanh(w).abs().max()


X = torch.tensor([[-1.7, -0.62, 0.3], [0.1, 0.9, 2.4]])
ONE_KEY = random.key(3)
NO_DERIVATIVE = ("gradcheck", "gradgradcheck", "jvp(jvp)", "jvp", "jvp(vmap)", "linear")
NOT_LINEAR = "clipping is no derivative: it is not linear, and has neither jvp nor differences"

OPS: dict[str, Op] = {
    "ste_round": Op(ops.ste_round, [(X,), (X[0, 0],)], identity),
    "ste_floor": Op(ops.ste_floor, [(X,)], identity),
    "ste_clamp": Op(lambda x: ops.ste_clamp(x, -1.0, 1.0), [(X,)], identity),
    "ste_sign": Op(ops.ste_sign, [(X,)], lambda x: ops.hardtanh_sign),
    "ste_sign/identity": Op(
        lambda x: ops.ste_sign(x, ops.identity_sign), [(X,)], lambda x: ops.identity_sign
    ),
    "ste_sign/polynomial": Op(
        lambda x: ops.ste_sign(x, ops.polynomial_sign), [(X,)], lambda x: ops.polynomial_sign
    ),
    "ste_sign/tanh": Op(
        lambda x: ops.ste_sign(x, ops.tanh_sign(2.0)), [(X,)], lambda x: lambda x: torch.tanh(2 * x)
    ),
    "top_k_mask": Op(lambda x: ops.top_k_mask(x, 2), [(X,)], identity),
    "gumbel_softmax": Op(
        lambda x, t: ops.gumbel_softmax(x, ONE_KEY, t),
        [(X, torch.tensor(0.7))],
        lambda x, t: (
            lambda x, t: ((x + random.gumbel(ONE_KEY, x.shape, dtype=torch.float64)) / t).softmax(
                -1
            )
        ),
    ),
    "scale_grad": Op(
        lambda x: ops.scale_grad(x, 0.3), [({"a": X, "b": X[0, 0]},)], lambda x: scaled(0.3)
    ),
    "reverse_grad": Op(lambda x: ops.reverse_grad(x, 2.0), [(X,)], lambda x: scaled(-2.0)),
    "clip_grad": Op(
        lambda x: ops.clip_grad(x, 0.5),
        [(X,)],
        skip=dict.fromkeys(NO_DERIVATIVE, NOT_LINEAR),
    ),
    "stop_gradient": Op(ops.stop_gradient, [(X,)], lambda x: lambda x: 0 * x),
    "fake_quantize": quantizer(ops.QuantSpec(bits=3), 3, 4),
    "fake_quantize/affine": quantizer(ops.QuantSpec(bits=4, signed=False), 3, 4, zero_point=5),
    "fake_quantize/channel": quantizer(ops.QuantSpec(bits=2, narrow=True, axis=1), 2, 3, 4),
    "fake_quantize/group": quantizer(ops.QuantSpec(bits=4, group_size=2), 3, 4),
    "fake_quantize/group axis 0": quantizer(ops.QuantSpec(bits=4, group_size=2, axis=0), 4, 3),
    "lsq": Op(
        lambda x, s: ops.lsq(x, s, ops.QuantSpec(bits=3)),
        [(2 * normal(3, 4), torch.tensor(0.4))],
        lsq_surrogate(ops.QuantSpec(bits=3)),
    ),
    "lsq_plus": Op(
        lambda x, s, b: ops.lsq_plus(x, s, b, ops.QuantSpec(bits=2, signed=False)),
        [(2 * normal(3, 4), torch.tensor(0.4), torch.tensor(-0.3))],
        lsq_plus_surrogate(ops.QuantSpec(bits=2, signed=False)),
    ),
    "pact": Op(lambda x, alpha: ops.pact(x, alpha, 3), [(X, torch.tensor(1.3))], pact_surrogate(3)),
    "dorefa": Op(lambda w: ops.dorefa(w, 3), [(X,)], dorefa_surrogate),
    "binarize": Op(ops.binarize, [(X,)], hard_mean(None, None)),
    "binarize/channel": Op(lambda w: ops.binarize(w, axis=0), [(X,)], hard_mean(0, None)),
    "ternarize": Op(ops.ternarize, [(X,)], hard_mean(None, 0.7)),
}


def scaled(factor: float) -> Callable[..., Any]:
    def surrogate(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: factor * leaf for name, leaf in x.items()}
        return factor * x

    return surrogate
