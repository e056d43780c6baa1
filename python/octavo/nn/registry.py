"""The one table of layers: for each kind the float class, the simulated class and the packed class.

Quantizing, packing, model folders, recipes and costs look layers up here and name no class themselves. A new layer is a
file in this folder that ends with :func:`register`; the file is loaded with the folder::

    register(LayerKind(nn.Linear, QuantLinear, PackedLinear))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from octavo.nn.format_layer import FormatLayer
from octavo.nn.own_forward import keeps_forward, own_class, roles_of
from octavo.nn.weight_buffers import WeightBuffers


@dataclass(frozen=True)
class LayerKind:
    """One kind of layer: a float class, and the classes that stand in for it.

    ``float_class``: what is replaced; a text such as ``transformers.pytorch_utils.Conv1D`` for a class whose package is
    not loaded for it; None for a product of activations, which is a module of Octavo from the start. ``simulated``: a
    :class:`~octavo.nn.QuantLayer`, or that module. ``packed``: a :class:`~octavo.nn.PackedLayer`, None where nothing is
    packed. ``weight_axis``: the axis of the float weight along which sums of products, and so blocks, run.
    ``is_lookup``: rows of the weight are read, not multiplied. ``is_solved``: whether one matrix multiplies the inputs
    of a layer, as ``gptq`` needs it.
    """

    float_class: type[nn.Module] | str | None
    simulated: type[Any]
    packed: type[Any] | None = None
    weight_axis: int = -1
    is_lookup: bool = False
    is_solved: bool = True

    @property
    def name(self) -> str:
        """The float class as errors name it."""
        if isinstance(self.float_class, str):
            package, _, name = self.float_class.partition(".")
            return f"{name.rpartition('.')[2]} of {package}"
        return (self.float_class or self.simulated).__name__

    @property
    def roles(self) -> tuple[str, ...]:
        """The tensors of the layer that may have a format."""
        roles: tuple[str, ...] = self.simulated.quant_roles
        return roles

    def is_of(self, cls: type) -> bool:
        """Whether a class is the float class or the simulated one."""
        if isinstance(self.float_class, str):
            return cls is self.simulated or f"{cls.__module__}.{cls.__name__}" == self.float_class
        return cls is self.simulated or cls is self.float_class

    def own_class(self, module: nn.Module) -> type[nn.Module] | None:
        """Return the class of a module of this kind whose ``forward`` is none of the float class's; else None."""
        return own_class(module, self.float_class) if isinstance(self.float_class, type) else None

    def computes(self, module: nn.Module) -> bool:
        """Whether a simulated layer can compute what a module of this kind does, or is one already."""
        if hasattr(module, "weight_quantizer") or not isinstance(self.float_class, type):
            return True
        return self.own_class(module) is None or keeps_forward(module)

    def roles_of(self, module: nn.Module) -> tuple[str, ...]:
        """Return the roles of a module of this kind: a ``forward`` of its own may leave out those of activations."""
        return roles_of(self.own_class(module), self.roles)


_KINDS: dict[str, LayerKind] = {}


def register(kind: LayerKind) -> LayerKind:
    """Add a kind of layer and return it; one with the same simulated class is replaced."""
    _KINDS[kind.simulated.__name__] = kind
    return kind


def unregister(kind: LayerKind) -> None:
    """Take a kind of layer out again."""
    del _KINDS[kind.simulated.__name__]


def layer_kinds() -> tuple[LayerKind, ...]:
    """Return every kind of layer, in the order in which they were registered."""
    return tuple(_KINDS.values())


def float_kinds() -> tuple[LayerKind, ...]:
    """Return the kinds that replace a float class."""
    return tuple(kind for kind in _KINDS.values() if kind.float_class is not None)


def kind_of(module: nn.Module) -> LayerKind | None:
    """Return the kind of a float or simulated layer, of which it may be a subclass; None for other modules."""
    return None if isinstance(module, WeightBuffers) else kind_of_class(type(module))


def kind_of_class(cls: type) -> LayerKind | None:
    """Return the kind of a float or simulated class, of which ``cls`` may be a subclass; None for other classes."""
    return next((kind for base in cls.__mro__ for kind in _KINDS.values() if kind.is_of(base)), None)


def packed_classes() -> dict[str, type[Any]]:
    """Return the packed classes by the names that files give them."""
    return {kind.packed.stored_class(): kind.packed for kind in _KINDS.values() if kind.packed is not None}


def simulated_classes() -> dict[str, type[Any]]:
    """Return the simulated classes by the names that files give them."""
    return {kind.simulated.stored_class(): kind.simulated for kind in _KINDS.values()}


def format_layers(model: nn.Module, *, duplicates: bool = False) -> Iterator[tuple[str, FormatLayer]]:
    """Yield the layers of a model whose tensors have formats, by path; not those inside another one.

    ``duplicates``: a layer that the model has at several places is told at each.
    """
    outer: str | None = None  # parts of a module follow it before any other module
    for path, module in model.named_modules(remove_duplicate=not duplicates):
        if outer is not None and (not outer or path.startswith(f"{outer}.")):
            continue
        if isinstance(module, FormatLayer):
            outer = path
            yield path, module


def class_named(name: str) -> type[nn.Module] | None:
    """Return the simulated or packed class of a name."""
    found = {cls.__name__: cls for kind in _KINDS.values() for cls in (kind.simulated, kind.packed) if cls is not None}
    return found.get(name)
