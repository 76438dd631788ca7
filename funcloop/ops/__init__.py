"""Functions with derivatives of their own, right under every transform."""

from funcloop.ops._binary import binarize, ternarize
from funcloop.ops._dorefa import dorefa
from funcloop.ops._fake_quantize import dequantize, fake_quantize, quantize
from funcloop.ops._function import function
from funcloop.ops._gradient import clip_grad, reverse_grad, scale_grad, stop_gradient
from funcloop.ops._lsq import lsq, lsq_init, lsq_plus
from funcloop.ops._min_max import min_max
from funcloop.ops._moving_average import moving_average
from funcloop.ops._mse import mse
from funcloop.ops._observer import Observer, Range
from funcloop.ops._pact import pact
from funcloop.ops._percentile import percentile
from funcloop.ops._quantized import quantized
from funcloop.ops._quantized_model import Quantized
from funcloop.ops._selection import gumbel_softmax, top_k_mask
from funcloop.ops._sign import (
    hardtanh_sign,
    identity_sign,
    polynomial_sign,
    ste_sign,
    tanh_sign,
)
from funcloop.ops._spec import QuantSpec
from funcloop.ops._straight_through import ste_clamp, ste_floor, ste_round, straight_through

__all__ = [
    "Observer",
    "QuantSpec",
    "Quantized",
    "Range",
    "binarize",
    "clip_grad",
    "dequantize",
    "dorefa",
    "fake_quantize",
    "function",
    "gumbel_softmax",
    "hardtanh_sign",
    "identity_sign",
    "lsq",
    "lsq_init",
    "lsq_plus",
    "min_max",
    "moving_average",
    "mse",
    "pact",
    "percentile",
    "polynomial_sign",
    "quantize",
    "quantized",
    "reverse_grad",
    "scale_grad",
    "ste_clamp",
    "ste_floor",
    "ste_round",
    "ste_sign",
    "stop_gradient",
    "straight_through",
    "tanh_sign",
    "ternarize",
    "top_k_mask",
]
