"""Layers of a class with a ``forward`` of its own: a table of positions that makes its ids, a scaled embedding.

Simulated and packed layers in their place are of a class that has both: the ``forward`` of the float layer's class, and
below it the layer of Octavo, which ``super().forward`` reaches. A class that multiplies ``self.weight`` itself reads
it rounded, or decoded (:mod:`octavo.nn.direct_weight_access`); activations are rounded where ``super().forward`` is.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, TypeVar, cast

from torch import nn

from octavo.late_binding import late
from octavo.nn.format_layer import FormatLayer
from octavo.nn.joined_linear import JoinedLinear
from octavo.nn.sum_linear import computes_as

M = TypeVar("M", bound=nn.Module)

_TAKEN = {"dtype", "format", "is_integer", "packed_weight", "parts", "scale", "what"}  # attributes of packed layers
_ROLES = ("weight", "bias")  # what a forward reads that calls no layer of ours

_classes: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}


class OwnForward:
    """Stands first among the bases of a class with the forward of one class and the layer of another."""

    own: type[nn.Module]
    ours: type[nn.Module]
    has_input_rows = False  # what the layer is called with need not be what the weight multiplies

    def cost(self, batch: int) -> tuple[str, int]:
        """Return the cost of the packed layer, which a forward that reads the weight itself decodes."""
        cost = cast("Any", super()).cost if calls_layer(self.own) else cast("Any", self).decode_cost
        return cast("tuple[str, int]", cost(batch))

    @classmethod
    def stored_class(cls) -> str:
        """Return the name in files: that of the layer of Octavo; the model's own code has the other class."""
        return cast("Any", cls.ours).stored_class()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle by the two classes, which other processes know."""
        parts = super().__reduce_ex__(protocol)
        assert isinstance(parts, tuple)  # a module is no global name
        return _made, (self.own, self.ours), *parts[2:]


def own_class(module: nn.Module, base: type[nn.Module]) -> type[nn.Module] | None:
    """Return the class whose forward a layer of ``base``, or one in its place, has; None where it is the base's own."""
    cls = type(module)
    if issubclass(cls, OwnForward):
        return cls.own
    is_ours = base is nn.Module or issubclass(cls, FormatLayer | JoinedLinear)
    return None if is_ours or computes_as(module, base) else cls


def keeps_forward(module: nn.Module) -> bool:
    """Whether a layer of ours can have the forward of ``module``, of a subclass of its float class.

    Not where other layers stand in it, which have formats of their own, where its weight is no plain Parameter, as
    those of other packages for quantizing are, or where it has an attribute of a name that packed layers use.
    """
    weight = module._parameters.get("weight")
    others = (other for child in module.children() for other in child.modules())
    names = {*vars(module), *module._buffers, *module._parameters, *module._modules}
    return (
        type(weight) is nn.Parameter and not names & _TAKEN and all(late("kind_of")(other) is None for other in others)
    )


def calls_layer(own: type[nn.Module]) -> bool:
    """Whether a class's forward calls the one of its base class, as ``super().forward(x)``."""
    code = getattr(inspect.unwrap(own.forward), "__code__", None)
    return code is not None and "__class__" in code.co_freevars and "forward" in code.co_names


def roles_of(own: type[nn.Module] | None, roles: tuple[str, ...]) -> tuple[str, ...]:
    """Return the roles of a layer that may have a format: without those of activations that no layer of ours sees."""
    return roles if own is None or calls_layer(own) else tuple(role for role in roles if role in _ROLES)


def class_of_both(own: type[nn.Module] | None, ours: type[M], base: type[nn.Module] | None = None) -> type[M]:
    """Return the class of a layer of ``ours`` with the forward of ``own``; ``ours`` where that is None.

    ``base``: the float class where ``ours`` is none of its subclasses; ``super()`` in ``own`` finds ``ours`` before it.
    """
    if own is None:
        return ours
    if (own, ours) not in _classes:
        bases = (OwnForward, own, ours) if base is None or issubclass(ours, base) else (OwnForward, own, ours, base)
        named = {"__module__": own.__module__, "__qualname__": own.__qualname__, "own": own, "ours": ours}
        _classes[own, ours] = type(own.__name__, bases, named)
    return cast("type[M]", _classes[own, ours])


def take_place(packed: nn.Module, layer: nn.Module, base: type[nn.Module]) -> None:
    """Give a packed layer the forward of the layer that it stands for, and what that has beside weight and bias."""
    own = own_class(layer, base)
    if own is None:
        return
    ours = type(packed)
    packed.__class__ = class_of_both(own, ours, base)
    attributes = vars(packed)
    for name, value in vars(layer).items():
        if name not in attributes and name not in ("weight", "bias"):
            attributes[name] = copy.copy(value)
    for registry in ("_parameters", "_buffers", "_modules"):
        for name, value in vars(layer)[registry].items():
            ours_alone = name in ("weight", "bias") or name.startswith("weight_") or name.endswith("_quantizer")
            if not ours_alone and name not in attributes[registry]:
                attributes[registry][name] = value
    attributes["_non_persistent_buffers_set"] |= layer._non_persistent_buffers_set


def _made(own: type[nn.Module], ours: type[nn.Module]) -> nn.Module:
    """Return a layer without content, to be unpickled or copied."""
    cls = class_of_both(own, ours, cast("Any", ours).replaces)
    return cls.__new__(cls)
