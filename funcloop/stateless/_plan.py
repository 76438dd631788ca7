"""What a pure call has to swap in a module, found once: names, ties, wrappers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from funcloop._errors import StructureError
from funcloop.stateless._computed import computed_attributes
from funcloop.stateless._hidden import (
    Held,
    mutable_attributes,
    refuse_backward_hooks,
    refuse_hidden,
    refuse_lazy,
    refuse_shared_memory,
    scan,
)
from funcloop.stateless._normalization import BatchNorm, is_cumulative
from funcloop.stateless._pattern import Pattern
from funcloop.stateless._wrappers import unwrap, walk


class Slot(NamedTuple):
    """One place in a module that holds a tensor: `container[local]`, known outside as `name`."""

    container: dict[str, Any]
    local: str
    name: str


class Wrapped(NamedTuple):
    """A child inside a wrapper, replaced during a call by what is inside."""

    container: dict[str, Any]
    local: str
    wrapper: nn.Module
    inner: nn.Module


class Recurrent(NamedTuple):
    """A recurrent module, whose weights torch also keeps in a list, in a flat order."""

    attributes: dict[str, Any]
    parameters: dict[str, Any]
    names: tuple[str, ...]


class Plan(NamedTuple):
    """Everything about a module that a call needs, so that the call itself is a tight loop."""

    net: nn.Module
    paths: tuple[str, ...]
    modules: tuple[nn.Module, ...]
    #: Module paths by the id of the module.
    module_names: dict[int, str]
    #: By name, in the module's order; a tied tensor under its first name.
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    #: Every name that params and buffers have to hold between them.
    names: frozenset[str]
    parameter_slots: tuple[Slot, ...]
    buffer_slots: tuple[Slot, ...]
    #: Buffers that are None; a forward may give them a value.
    empty_slots: tuple[Slot, ...]
    wrapped: tuple[Wrapped, ...]
    recurrent: tuple[Recurrent, ...]
    #: Attributes of modules that `module.compile()` was called on.
    compiled: tuple[dict[str, Any], ...]
    #: Attributes, by `(id(vars(module)), name)`, that a hook computes at each call.
    computed: frozenset[tuple[int, str]]
    #: Plain tensors among the attributes: read by the forward, never written.
    constants: tuple[Held, ...]
    #: Plain tensor attributes that no hook computes: the place in `dicts`, and the name.
    tensor_attributes: tuple[tuple[int, str], ...]
    #: The `__dict__` of each module.
    attributes: tuple[dict[str, Any], ...]
    #: Lists, dicts and sets among the attributes.
    containers: tuple[Any, ...]
    #: Norms that average over all batches: `momentum=None`.
    cumulative: tuple[BatchNorm, ...]
    #: Dicts of every module that hold something: saved before a call and put back after it.
    dicts: tuple[dict[str, Any], ...]
    #: Dicts of parameters, buffers and children that hold nothing, and keep doing so.
    empty_dicts: tuple[dict[str, Any], ...]
    #: What has to look the same at every call: the children, and how many leaves there are.
    children: tuple[tuple[dict[str, Any], tuple[Any, ...]], ...]
    sizes: tuple[tuple[dict[str, Any], int], ...]

    def match(self, params: Mapping[str, Any], buffers: Mapping[str, Any]) -> dict[str, Any]:
        """All leaves by name.

        Raises:
            StructureError: a name is missing, unknown, or in both, or there are no names.
        """
        try:
            values = {**buffers, **params}
        except TypeError:
            raise _no_names(params, buffers) from None
        if len(values) != len(params) + len(buffers) or values.keys() != self.names:
            self._explain_names(params, buffers, values)
        return values

    def _explain_names(
        self, params: Mapping[str, Any], buffers: Mapping[str, Any], values: Mapping[str, Any]
    ) -> None:
        optional = {slot.name for slot in self.empty_slots}
        missing = [name for name in (*self.parameters, *self.buffers) if name not in values]
        extra = [name for name in values if name not in self.names and name not in optional]
        twice = [name for name in params if name in buffers]
        if missing or extra or twice:
            raise StructureError(
                "params and buffers together hold every leaf of the module once",
                f"missing {missing}, unknown {extra}, in both {twice}",
                "start from model.init(), and move leaves with model.freeze and model.thaw",
            )

    def current(self) -> dict[str, Tensor]:
        """What stands in the module now: its buffers, then its parameters."""
        leaves: dict[str, Tensor] = {}
        for container, local, name in (*self.buffer_slots, *self.parameter_slots):
            leaves.setdefault(name, container[local])
        return leaves

    def changeable(self, values: Mapping[str, Any]) -> list[str]:
        """Names of the buffers among `values`, also of those that are None in the module."""
        if len(values) == len(self.names):
            return list(self.buffers)
        return [*self.buffers, *(slot.name for slot in self.empty_slots if slot.name in values)]

    def check_unchanged(self) -> None:
        """Raises StructureError where the module was rebuilt after `stateless(net)`."""
        for container, children in self.children:
            if tuple(container.values()) != children:
                self._refuse_change()
        for container, size in self.sizes:
            if len(container) != size:
                self._refuse_change()
        if any(self.empty_dicts):
            self._refuse_change()

    def _refuse_change(self) -> None:
        raise StructureError(
            "a module keeps its children, parameters and buffers after stateless(net)",
            f"this {type(self.net).__name__} has others now, or its forward has made some",
            "finish the module before stateless(net), and make nothing of that kind in forward",
        )


def make_plan(net: nn.Module, allow_hidden: Pattern) -> Plan:
    """Walk the module once.

    Raises:
        HiddenStateError: a parameter is lazy, or state is held where no swap can see it.
        UnsupportedError: a module is of a kind that cannot be swapped, or has backward hooks.
    """
    net = unwrap(net)
    found = list(walk(net))
    parameters, parameter_slots, _ = _leaves(found, "_parameters", {})
    buffers, buffer_slots, empty_slots = _leaves(found, "_buffers", parameters)
    leaves = {**parameters, **buffers}
    computed = computed_attributes(tuple(module for _, module in found))
    harmful, hidden = scan(found, leaves, computed)
    refuse_hidden(harmful, allow_hidden)
    refuse_shared_memory(leaves)
    refuse_backward_hooks(found, parameters)
    paths, modules = zip(*found, *hidden.stateless, strict=True)
    every = [d for m in modules for d in (vars(m), m._parameters, m._buffers, m._modules)]
    dicts = [d for d in every if d]
    return Plan(
        net=net,
        paths=paths,
        modules=modules,
        module_names={id(m): path for path, m in zip(paths, modules, strict=True)},
        parameters=parameters,
        buffers=buffers,
        names=frozenset(leaves),
        parameter_slots=tuple(parameter_slots),
        buffer_slots=tuple(buffer_slots),
        empty_slots=tuple(empty_slots),
        wrapped=tuple(_wrapped(modules)),
        recurrent=tuple(_recurrent(modules)),
        compiled=tuple(vars(m) for m in modules if "_compiled_call_impl" in vars(m)),
        computed=computed,
        constants=hidden.constants,
        tensor_attributes=tuple(_tensor_attributes(dicts, computed)),
        attributes=tuple(vars(m) for m in modules),
        containers=tuple(mutable_attributes(modules)),
        cumulative=tuple(m for m in modules if is_cumulative(m)),
        dicts=tuple(dicts),
        empty_dicts=tuple(d for d in every if not d),
        children=tuple((m._modules, tuple(m._modules.values())) for m in modules if m._modules),
        sizes=tuple((d, len(d)) for m in modules for d in (m._parameters, m._buffers) if d),
    )


def _leaves(
    found: list[tuple[str, nn.Module]], kind: str, known: Mapping[str, Tensor]
) -> tuple[dict[str, Any], list[Slot], list[Slot]]:
    """Leaves by first name, a slot for each place that holds one, and the empty places."""
    names = {id(tensor): name for name, tensor in known.items()}
    leaves: dict[str, Any] = {}
    slots: list[Slot] = []
    empty: list[Slot] = []
    for path, module in found:
        container = getattr(module, kind)
        for local, tensor in container.items():
            name = f"{path}.{local}" if path else local
            if tensor is None:
                empty.append(Slot(container, local, name))
                continue
            refuse_lazy(tensor, name)
            if id(tensor) not in names:
                names[id(tensor)] = name
                leaves[name] = tensor
            slots.append(Slot(container, local, names[id(tensor)]))
    return leaves, slots, empty


def _tensor_attributes(
    dicts: list[dict[str, Any]], computed: frozenset[tuple[int, str]]
) -> Iterator[tuple[int, str]]:
    for place, container in enumerate(dicts):
        if "_parameters" in container:  # the attributes of a module
            for name, value in container.items():
                if isinstance(value, Tensor) and (id(container), name) not in computed:
                    yield place, name


def _wrapped(modules: tuple[nn.Module, ...]) -> Iterator[Wrapped]:
    for module in modules:
        for name, child in module._modules.items():
            if child is not None and (inner := unwrap(child, name)) is not child:
                yield Wrapped(module._modules, name, child, inner)


def _recurrent(modules: tuple[nn.Module, ...]) -> Iterator[Recurrent]:
    for module in modules:
        if isinstance(module, nn.RNNBase):
            names = tuple(module._flat_weights_names)
            # parametrized weights are computed at each call, and torch packs the list itself
            if all(name in module._parameters for name in names):
                yield Recurrent(vars(module), module._parameters, names)


def _no_names(params: Any, buffers: Any) -> StructureError:
    return StructureError(
        "params and buffers are dicts by name",
        f"params are a {type(params).__name__}, buffers a {type(buffers).__name__}",
        "give the dicts; where a gradient function keeps something of its own beside the buffers, "
        "such as a loss scale or a count, use that gradient function with it",
    )
