"""Replaces layers by quantized ones. All are made before the model is changed, and the change can be undone."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from torch import nn

from octavo.errors import DTypeError, FormatError
from octavo.nn.format_layer import FormatLayer
from octavo.nn.quant_layer import NO_PLAIN_WEIGHT, QuantLayer, has_plain_weight, recomputed
from octavo.nn.registry import float_kinds, kind_of
from octavo.nn.replace_modules import Undo, replace_modules
from octavo.nn.rewriting import layers_in_reach, new_parts
from octavo.recipe import Recipe
from octavo.recipe.spec import LayerPlan

Plan = Mapping[str, LayerPlan]
_ABSENT = object()


def plan_of(model: nn.Module, recipe: Any) -> Plan:
    """Return the plan of a recipe, a text, a dictionary of one, or a plan itself.

    Raises FormatError, and DTypeError for layers whose weight a hook computes: such models cannot be copied.
    """
    plan = _plan(model, recipe)
    reached, _ = layers_in_reach(model)
    for path in plan:
        if reason := recomputed(reached[path]):
            raise DTypeError(f"{path or type(model).__name__}: {reason}")
    return plan


def _plan(model: nn.Module, recipe: Any) -> Plan:
    if not isinstance(model, nn.Module):
        raise DTypeError(f"a recipe decides about a torch.nn.Module, got {type(model).__name__}")
    if isinstance(recipe, Mapping) and all(isinstance(value, LayerPlan) for value in recipe.values()):
        known, _ = layers_in_reach(model)
        for path in recipe:
            if path not in known:
                near = difflib.get_close_matches(path, known, n=3) or list(known)[1:4]
                raise FormatError(f"plan: no module '{path}'; nearest names: {', '.join(near) or 'none'}")
        return recipe
    return Recipe.of(recipe).plan(model)


class Replacement:
    """The quantized layers of a plan, beside the model whose layers they replace.

    Raises DTypeError or FormatError, naming the layer, for what cannot be replaced or cannot hold its formats; the
    model is as it was.
    """

    def __init__(self, model: nn.Module, plan: Plan, recipe: str | None = None) -> None:
        """Make the layers. ``recipe``: the text that the plan is of, for the way out in errors."""
        self.model = model
        modules, stand_ins = layers_in_reach(model)
        past = _read_past(modules)
        self.layers: dict[str, nn.Module] = {}
        self.reached = modules
        self.replaced = {path: modules[path] for path in plan}
        self._new: dict[int, nn.Module] = {}
        self._undo: Undo = []
        _refuse_computed(self.replaced, recipe)
        for path, layer_plan in plan.items():
            module = modules[path]
            if module in past:
                raise DTypeError(
                    f"{path}: torch.nn.MultiheadAttention reads this layer's weights itself, past the layer; "
                    "write the attention with Linear layers"
                )
            if id(module) in self._new:
                first = next(name for name, layer in self.layers.items() if layer is self._new[id(module)])
                if plan[first] != layer_plan:
                    raise FormatError(f"plan: {first} and {path} are one module and are given different formats")
                continue
            layer = _quantized(module, layer_plan, path)
            self.layers[path] = layer
            self._new[id(module)] = layer
        for path, new in stand_ins.items():  # in the model only where one of its layers has a format now
            old = model.get_submodule(path)
            if inside := {id(part): self._new[id(part)] for part in new_parts(new, old) if id(part) in self._new}:
                self._new[id(old)] = replace_modules(new, inside)

    def apply(self) -> nn.Module:
        """Put the layers in place, at every path they are known by; return the model, or its replacement."""
        quantized = replace_modules(self.model, self._new, self._undo)
        replacements = set(self._new.values())
        for module in quantized.modules():
            # torch's fast path reads the weights of its layers past them.
            if isinstance(module, nn.TransformerEncoderLayer) and not replacements.isdisjoint(module.children()):
                self._set(vars(module), "activation_relu_or_gelu", 0)
            if isinstance(module, nn.TransformerEncoder) and any(isinstance(m, QuantLayer) for m in module.modules()):
                self._set(vars(module), "use_nested_tensor", False)
        return quantized

    def undo(self) -> None:
        """Put everything back."""
        for step in reversed(self._undo):
            step()
        self._undo.clear()

    def _set(self, registry: dict[str, Any], name: str, value: Any) -> None:
        before = registry.get(name, _ABSENT)
        self._undo.append(lambda: registry.pop(name, None) if before is _ABSENT else registry.update({name: before}))
        registry[name] = value


def _read_past(modules: Mapping[str, nn.Module]) -> set[nn.Module]:
    """Modules whose weights another module reads itself."""
    return {m.out_proj for m in modules.values() if isinstance(m, nn.MultiheadAttention)}


def check_layers(model: nn.Module, recipe: Recipe) -> None:
    """Refuse a recipe as :func:`octavo.quantize_model` does before it looks at data; the model stays as it is."""
    Replacement(model, plan_of(model, recipe), str(recipe))


def _refuse_computed(layers: Mapping[str, nn.Module], recipe: str | None) -> None:
    """Refuse layers without a weight of their own, with the recipe that keeps them all."""
    floats = {path: layer for path, layer in layers.items() if kind_of(layer) and not isinstance(layer, FormatLayer)}
    computed = [path for path, layer in floats.items() if not has_plain_weight(layer)]
    if computed and computed[0] and recipe is not None:
        rules = "; ".join([recipe, *(f"{path} keep" for path in computed)])
        raise DTypeError(f"{computed[0]}: {NO_PLAIN_WEIGHT}, and the recipe '{rules}' leaves it as it is")


def _quantized(module: nn.Module, plan: LayerPlan, path: str) -> nn.Module:
    label = path or type(module).__name__
    with_plan = getattr(module, "with_plan", None)
    if with_plan is not None:
        return with_plan(plan, label)
    kind = kind_of(module)
    if kind is None:
        accepted = ", ".join(kind.name for kind in float_kinds())
        raise DTypeError(f"{label} is a {type(module).__name__}; accepted are {accepted}")
    return kind.simulated.from_layer(module, plan, label)
