"""The same training steps in JAX and Optax, from the same weights, as a JAX user writes them.

Only imported where `jax` and `optax` are installed. Weights keep JAX's layouts: (in, out) for dense
layers, NHWC and HWIO for convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import jax  # type: ignore[import-not-found]  # only where it is installed
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
import optax  # type: ignore[import-not-found]
import torch
from torch import nn

from bench._workloads import DECAY, GPT, LR, Workload

Tree = dict[str, Any]


def jax_step(work: Workload) -> Callable[[], Any]:
    """The jitted and donated step; each run returns the loss, and has then finished."""
    params, stats = weights(work.net)
    forward = forward_of(work.net)
    batches = cycle([(channels_last(array(x)), array(y)) for x, y in work.batches])
    tx = optax.adamw(LR, weight_decay=DECAY)

    def loss(params: Tree, stats: Tree, x: Any, y: Any) -> Any:
        scores, stats = forward(params, stats, x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), stats

    def step(state: Any, x: Any, y: Any) -> Any:
        params, stats, opt_state = state
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, stats, x, y)
        updates, opt_state = tx.update(grads, opt_state, params)
        metrics = value, optax.global_norm(grads)
        return (optax.apply_updates(params, updates), stats, opt_state), metrics

    compiled = jax.jit(step, donate_argnums=0)
    state = params, stats, tx.init(params)

    def run() -> Any:
        nonlocal state
        state, (value, _) = compiled(state, *next(batches))
        # Donated arrays are ready only when the step is done; its loss may be ready before.
        jax.block_until_ready(state)
        return value

    return run


def array(tensor: torch.Tensor) -> Any:
    values = tensor.detach().cpu().numpy()
    return jnp.array(values.astype(np.int32) if values.dtype == np.int64 else values)


def channels_last(x: Any) -> Any:
    """NCHW to NHWC; anything else stays as it is."""
    return x.transpose(0, 2, 3, 1) if x.ndim == 4 else x


def weights(net: nn.Module) -> tuple[Tree, Tree]:
    """Params and running statistics, in JAX's layouts."""
    params, stats = {}, {}
    for name, module in net.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            stats[name] = array(module.running_mean), array(module.running_var)
        for part, p in module.named_parameters(name, recurse=False):
            if isinstance(module, nn.Linear) and p.ndim == 2:
                params[part] = array(_input_last_to_first(net, name, p).T)
            elif isinstance(module, nn.Conv2d) and p.ndim == 4:
                params[part] = array(p.permute(2, 3, 1, 0))
            else:
                params[part] = array(p)
    return params, stats


def _input_last_to_first(net: nn.Module, name: str, weight: torch.Tensor) -> torch.Tensor:
    """The CNN's classifier reads (C, H, W) flattened; in NHWC it reads (H, W, C)."""
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    if not convolutions:
        return weight
    channels = convolutions[-1].out_channels
    side = round((weight.shape[1] / channels) ** 0.5)
    return weight.view(-1, channels, side, side).permute(0, 2, 3, 1).flatten(1)


def forward_of(net: nn.Module) -> Callable[[Tree, Tree, Any], Any]:
    """`(params, stats, x) -> (scores, stats)`."""
    if isinstance(net, GPT):
        return lambda params, stats, x: (gpt(params, x, net), stats)
    assert isinstance(net, nn.Sequential)

    def forward(params: Tree, stats: Tree, x: Any) -> Any:
        new = {}
        for name, module in net.named_children():
            if isinstance(module, nn.BatchNorm2d):
                x, new[name] = batch_norm(params, stats[name], name, x)
            else:
                x = layer(params, name, module, x)
        return x, new

    return forward


def layer(params: Tree, name: str, module: nn.Module, x: Any) -> Any:
    if isinstance(module, nn.Linear):
        return linear(params, name, x)
    if isinstance(module, nn.Conv2d):
        kinds = ("NHWC", "HWIO", "NHWC")
        weight = params[f"{name}.weight"]
        return jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=kinds)
    if isinstance(module, nn.ReLU):
        return jax.nn.relu(x)
    if isinstance(module, nn.MaxPool2d):
        window = (1, 2, 2, 1)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    assert isinstance(module, nn.Flatten), module
    return x.reshape(len(x), -1)


def batch_norm(params: Tree, stats: Any, name: str, x: Any) -> Any:
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    count = x.size // x.shape[-1]
    unbiased = var * count / (count - 1)
    new = 0.9 * stats[0] + 0.1 * mean, 0.9 * stats[1] + 0.1 * unbiased
    normal = (x - mean) * jax.lax.rsqrt(var + 1e-5)
    return normal * params[f"{name}.weight"] + params[f"{name}.bias"], new


def linear(params: Tree, name: str, x: Any) -> Any:
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def layer_norm(params: Tree, name: str, x: Any) -> Any:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    normal = (x - mean) * jax.lax.rsqrt(var + 1e-5)
    return normal * params[f"{name}.weight"] + params[f"{name}.bias"]


def gpt(params: Tree, text: Any, net: GPT) -> Any:
    x = params["symbol.weight"][text] + params["place.weight"]
    for i, block in enumerate(net.blocks):
        name = f"blocks.{i}"
        b, t, d = x.shape
        qkv = linear(params, f"{name}.qkv", layer_norm(params, f"{name}.norm1", x))
        q, k, v = jnp.moveaxis(qkv.reshape(b, t, 3, block.heads, -1), 2, 0)  # each (B, T, H, D)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(params, f"{name}.out", mixed.reshape(b, t, d))
        h = linear(params, f"{name}.up", layer_norm(params, f"{name}.norm2", x))
        x = x + linear(params, f"{name}.down", jax.nn.gelu(h, approximate=False))
    return layer_norm(params, "norm", x) @ params["head.weight"]  # (B, T, symbols)
