"""Modules of a model replaced by others, at every path: where a model of transformers gets :class:`OurMethods`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from octavo.nn.format_layer import FormatLayer
from octavo.nn.model_copies import deep_copy
from octavo.nn.transformers_methods import use_our_methods

Undo = list[Callable[[], None]]
"""Calls that put back what a change has changed, to be made from the last to the first."""


def replace_modules(model: nn.Module, new: Mapping[int, nn.Module], undo: Undo | None = None) -> nn.Module:
    """Put modules in the place of others, wherever those stand; return ``model``, or the layer that takes its place.

    ``new``: modules by the ``id`` of the one that each replaces. A model that is itself to be replaced by a module made
    of layers becomes that: whoever holds it holds the new one. ``undo``: gets calls that put everything back.
    """
    steps: Undo = [] if undo is None else undo
    for module in [*model.modules(), *new.values()]:  # a module made of layers has parts of the one it replaces
        for name, child in module._modules.items():
            if child is not None and id(child) in new:
                module._modules[name] = new[id(child)]
                steps.append(_putting(module, name, child))
    top = new.get(id(model), model)
    if top is not model and not isinstance(top, FormatLayer):
        steps.append(_becoming(model, type(model), vars(model)))
        _becoming(model, type(top), vars(top))()
        _hold_hooks(model)
        top = model
    for module, former in use_our_methods(top):
        steps.append(_of_class(module, former))
    return top


def copy_with(model: nn.Module, new: Mapping[int, nn.Module]) -> nn.Module:
    """Return a copy of ``model`` with modules in the place of others, by the ``id`` of those."""
    copied = deep_copy(model, dict(new))
    use_our_methods(copied)
    return copied


def _putting(module: nn.Module, name: str, child: nn.Module) -> Callable[[], None]:
    return lambda: module._modules.update({name: child})


def _becoming(module: nn.Module, cls: type[nn.Module], content: dict[str, Any]) -> Callable[[], None]:
    def become() -> None:
        module.__class__ = cls
        module.__dict__ = content

    return become


def _hold_hooks(module: nn.Module) -> None:
    """Let hooks that torch calls with their module know this one, not the one that it has become."""
    for name in ("_state_dict_pre_hooks", "_load_state_dict_pre_hooks"):
        hooks = vars(module)[name]
        for key, hook in hooks.items():
            if getattr(hook, "with_module", False):
                hooks[key] = type(hook)(hook.hook, module)


def _of_class(module: nn.Module, cls: type[nn.Module]) -> Callable[[], None]:
    return lambda: setattr(module, "__class__", cls)
