"""A model with quantized weights and layer outputs, and scales among its params."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from funcloop._errors import StructureError, UnsupportedError
from funcloop._types import Key, Model
from funcloop.ops._mse import mse
from funcloop.ops._observer import Observer, Range
from funcloop.ops._sites import Leaves, first_step, floating_output, move, output_site, round_site
from funcloop.ops._spec import QuantSpec
from funcloop.ops._tap import tapped


class Layered(Model, Protocol):
    """What `stateless(net)` is: a Model that also knows its parameters and can be merged."""

    names: tuple[str, ...]
    paths: tuple[str, ...]

    def merge(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> nn.Module:
        """A fresh module that holds these tensors."""
        ...


class Quantized:
    """What `quantized(model, ...)` returns; used as what `stateless(net)` returns.

    Attributes:
        paths: The path of every module of the model.
        names: The qualified name of every parameter, scales and offsets among them.
        weights: The spec of each quantized parameter.
        activations: The spec of each layer whose output is quantized.
    """

    def __init__(
        self, model: Layered, weights: dict[str, QuantSpec], activations: dict[str, QuantSpec]
    ) -> None:
        self._model = model
        self.weights, self.activations = weights, activations
        self.paths = model.paths
        #: Everything that is quantized, by the prefix of its scale's name.
        self._sites = {**weights, **{output_site(path): spec for path, spec in activations.items()}}
        self._own = [
            f"{site}.{leaf}"
            for site, spec in self._sites.items()
            for leaf in (("scale",) if spec.symmetric else ("scale", "offset"))
        ]
        self.names = (*model.names, *self._own)

    def init(self, key: Key | None = None) -> tuple[Leaves, Leaves]:
        """The model's own params and buffers, with scales to start training from.

        The scale of a weight is `lsq_init` of it. Those of layer outputs are one until
        `calibrate` has seen an input.

        Args:
            key: As for the model; keys of shape (N, 2) give stacked leaves.
        """
        params, buffers = self._model.init(key)
        lead = torch.Size([]) if key is None else key.shape[:-1]
        like = next(iter({**params, **buffers}.values()), torch.zeros(()))
        for site, spec in self._sites.items():
            if site in self.weights:
                home = params if site in params else buffers
                scale = first_step(home[site], spec, len(lead))
            else:
                home, scale = params, torch.ones(lead, device=like.device)
            home[f"{site}.scale"] = scale
            if not spec.symmetric:
                home[f"{site}.offset"] = torch.zeros_like(scale)
        return params, buffers

    def calibrate(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        /,
        *args: Any,
        key: Key | None = None,
        observer: Callable[[QuantSpec], Observer] = mse,
        **kwargs: Any,
    ) -> tuple[Leaves, Leaves]:
        """Params and buffers with every scale taken from what is observed in one evaluation.

        Args:
            params: Of this model, or of the model that it wraps, trained without quantization.
            buffers: The same.
            *args: A batch of inputs, as for `apply`; the model runs on it unquantized.
            key: As for `apply`.
            observer: `mse`, `min_max`, `percentile` or `moving_average`, or another that makes an
                Observer of a spec.
            **kwargs: As for `apply`.

        Returns:
            New params and buffers. A scale that was among the buffers stays there.
        """
        inner = [self._without_own(leaves) for leaves in (params, buffers)]
        seen: dict[str, tuple[Observer, Range]] = {}

        def see(site: str, x: Tensor) -> None:
            one = observer(self._sites[site])
            state = seen[site][1] if site in seen else one.init(x)
            seen[site] = one, one.observe(state, x)

        for name in self.weights:
            see(name, {**inner[0], **inner[1]}[name])
        with tapped(
            self.activations, lambda path, x: see(output_site(path), floating_output(path, x))
        ):
            self._model.apply(*inner, *args, key=key, train=False, **kwargs)
        found: Leaves = {}
        for site, spec in self._sites.items():
            if site not in seen:
                raise StructureError(
                    "a layer whose output is quantized is called", f"{site} is not", "leave it out"
                )
            one, state = seen[site]
            scale, zero_point = one.scale_zero_point(state)
            found[f"{site}.scale"] = scale
            if not spec.symmetric:
                found[f"{site}.offset"] = -zero_point * scale
        frozen = {name: found.pop(name) for name in list(found) if name in buffers}
        return {**params, **found}, {**buffers, **frozen}

    def apply(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        /,
        *args: Any,
        key: Key | None = None,
        train: bool | Mapping[str, bool],
        **kwargs: Any,
    ) -> tuple[Any, Leaves]:
        """The output with quantized weights and layer outputs, and the new buffers.

        Args:
            params: Leaves by name, scales among them.
            buffers: Leaves by name, frozen scales among them.
            *args: As for the model.
            key: As for the model.
            train: As for the model.
            **kwargs: As for the model.

        Raises:
            StructureError: a scale is missing.
            UnsupportedError: the output of a chosen layer is no floating tensor.
        """
        leaves = {**buffers, **params}
        missing = [name for name in self._own if name not in leaves]
        if missing:
            raise StructureError(
                "a quantized model has a scale for everything that it quantizes",
                f"missing {missing}",
                "start from init() or calibrate() of the quantized model",
            )

        def tap(path: str, output: Any) -> Tensor:
            x = floating_output(path, output)
            features = math.prod(x.shape[1:])  # of one example
            return round_site(output_site(path), x, leaves, self.activations[path], features)

        inner = self._rounded(params, leaves), self._rounded(buffers, leaves)
        with tapped(self.activations, tap):
            output, after = self._model.apply(*inner, *args, key=key, train=train, **kwargs)
        return output, self._kept(buffers, after)

    def _kept(self, buffers: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Leaves:
        """The buffers afterwards: frozen weights and scales are those that were given."""
        new = {name: x for name, x in after.items() if name not in self.weights}
        return {**buffers, **new}

    def _without_own(self, leaves: Mapping[str, Tensor]) -> Leaves:
        own = set(self._own)
        return {name: x for name, x in leaves.items() if name not in own}

    def _rounded(self, part: Mapping[str, Tensor], leaves: Mapping[str, Tensor]) -> Leaves:
        """The leaves of the wrapped model, weights quantized."""
        return {
            name: round_site(name, x, leaves, self.weights[name]) if name in self.weights else x
            for name, x in self._without_own(part).items()
        }

    def freeze(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], pattern: str
    ) -> tuple[Leaves, Leaves]:
        """Move the params that a shell pattern matches to the buffers, where nothing trains them.

        >>> import torch
        >>> from funcloop.ops import quantized
        >>> from funcloop.stateless import stateless
        >>> qmodel = quantized(stateless(torch.nn.Linear(2, 3)), weights=QuantSpec(4))
        >>> params, buffers = qmodel.freeze(*qmodel.init(), "*.scale")
        >>> list(params), list(buffers)
        (['weight', 'bias'], ['weight.scale'])

        Raises:
            StructureError: the pattern matches none of the params.
        """
        return move(self.names, params, buffers, pattern)

    def thaw(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], pattern: str
    ) -> tuple[Leaves, Leaves]:
        """Move frozen parameters that a shell pattern matches back to the params.

        Raises:
            StructureError: the pattern matches no parameter among the buffers.
        """
        buffers, params = move(self.names, buffers, params, pattern)
        return params, buffers

    def merge(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> nn.Module:
        """A fresh module that holds the quantized weights.

        Raises:
            UnsupportedError: layer outputs are quantized, which a plain module cannot do.
        """
        if self.activations:
            raise UnsupportedError(
                "a plain module does not quantize its layer outputs",
                f"{list(self.activations)} are quantized",
                "merge a model with quantized weights only, or use apply",
            )
        leaves = {**buffers, **params}
        return self._model.merge(self._rounded(params, leaves), self._rounded(buffers, leaves))

    def __repr__(self) -> str:
        count = f"{len(self.weights)} weights and {len(self.activations)} layer outputs"
        return f"quantized({self._model!r}, {count})"
