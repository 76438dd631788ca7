"""`quantized`: a model whose weights and layer outputs are rounded on the way."""

from __future__ import annotations

from funcloop.ops._quantized_model import Layered, Quantized
from funcloop.ops._schemes import Schemes, activation_specs, weight_specs


def quantized(
    model: Layered, weights: Schemes | None = None, activations: Schemes | None = None
) -> Quantized:
    """A model that computes with quantized weights and layer outputs, and trains through them.

    No module is changed. `apply` maps the params through `lsq` before the model sees them, and the
    outputs of the chosen layers on their way. The scales are ordinary params, named
    `<parameter>.scale` and `<path>.output.scale`; where a spec is not symmetric there is an
    `.offset` as well, as in `lsq_plus`. Quantization after training is the same model with frozen
    scales: `params, buffers = qmodel.freeze(params, buffers, "*.scale")`.

    Args:
        model: What `stateless(net)` returned.
        weights: A spec for all parameters of two or more dimensions; or specs by patterns over
            parameter names. `axis=0` gives each output channel its own scale.
        activations: A spec for the outputs of all activation modules (`nn.ReLU` and the like); or
            specs by patterns over module paths. There is one scale for each layer.

    Returns:
        The quantized model, for `supervised`, any GradFn and `jit`.

    Raises:
        StructureError: a pattern matches nothing, or a spec finds nothing to quantize.
        ArgumentError: a spec for activations has an axis or groups.

    >>> import torch
    >>> from funcloop.ops import QuantSpec
    >>> from funcloop.stateless import stateless
    >>> model = stateless(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()))
    >>> qmodel = quantized(model, QuantSpec(4), {"1": QuantSpec(4, signed=False)})
    >>> x = torch.linspace(-1, 1, 12).view(3, 4)
    >>> params, buffers = qmodel.calibrate(*model.init(), x)
    >>> list(params)
    ['0.weight', '0.bias', '0.weight.scale', '1.output.scale']
    >>> output, _ = qmodel.apply(params, buffers, x, train=True)
    >>> bool(len(output.unique()) <= 16)
    True
    """
    net = model.merge(*model.init())
    return Quantized(model, weight_specs(net, weights), activation_specs(net, activations))
