"""Which layers are adapted, and which modules are trained whole."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from itertools import chain

from torch import nn

from octavo.compress.lora.adapter import ATTRIBUTE, Adapters, adapters
from octavo.compress.lora.config import LoraConfig
from octavo.errors import ModelError
from octavo.nn import PackedLayer, PackedLinear
from octavo.quant.recipe import Selector, parse_selector


def target_paths(model: nn.Module, config: LoraConfig) -> list[str]:
    """Return the paths of the linear layers to adapt: those that targets select and train does not.

    Raises ModelError for a selector that selects none, and for layers that no adapter goes on.
    """
    whole = trained_paths(model, config)
    paths = [path for path in _select(model, config.targets, _is_linear, "linear layer") if not _inside(path, whole)]
    if not paths:
        raise ModelError(f"lora: every layer of targets {', '.join(config.targets)} is trained whole (train=)")
    for path in paths:
        layer = model.get_submodule(path)
        if ATTRIBUTE in dict(layer.named_children()) and not isinstance(layer.lora, Adapters):
            raise ModelError(f"lora: {path} has a module of its own called {ATTRIBUTE!r}; rename it")
    return paths


def trained_paths(model: nn.Module, config: LoraConfig) -> list[str]:
    """Return the paths of the modules that are trained whole.

    Raises ModelError for a selector that selects nothing to train, and for what cannot be trained.
    """
    paths = _select(model, config.train, _has_parameters, "module with parameters")
    for path in paths:
        for child, part in model.get_submodule(path).named_modules():
            if isinstance(part, PackedLayer):
                where = _join(path, child)
                raise ModelError(f"lora: {where} is packed, and codes are not trained; adapt it instead of train=")
    _refuse_ties(model, paths)
    return paths


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | PackedLinear)


def _has_parameters(module: nn.Module) -> bool:
    return isinstance(module, PackedLayer) or any(True for _ in module.parameters())


def _refuse_ties(model: nn.Module, paths: list[str]) -> None:
    """Raise ModelError where training a module would change the frozen base through a tied parameter."""
    names = list(model.named_parameters(remove_duplicate=False))
    inside = {id(parameter): name for name, parameter in names if _inside(name, paths)}
    for name, parameter in names:
        if id(parameter) in inside and not _inside(name, paths):
            tied = inside[id(parameter)]
            raise ModelError(f"lora: {tied} is tied to {name}; name both modules in train=, or neither")


def _select(model: nn.Module, texts: tuple[str, ...], fits: Callable[[nn.Module], bool], what: str) -> list[str]:
    """Return the paths of the modules that any of the selectors means and that fit, in the model's order.

    Adapters are left out, and so is what ``nn.MultiheadAttention`` holds: it reads weights past their modules.
    """
    own = [_join(path, ATTRIBUTE) for path in adapters(model)]
    modules = {path: module for path, module in model.named_modules() if not _inside(path, own)}
    attentions = [path for path, module in modules.items() if isinstance(module, nn.MultiheadAttention)]
    usable = {
        path: _class_names(module)
        for path, module in modules.items()
        if fits(module) and not any(path.startswith(f"{parent}.") for parent in attentions)
    }
    chosen: set[str] = set()
    for text in texts:
        selector = parse_selector(text)
        found = _matching(selector, usable)
        if not found:
            raise ModelError(_nothing(text, selector, modules, what))
        chosen.update(found[:1] if selector.pick == "first" else found[-1:] if selector.pick == "last" else found)
    return [path for path in usable if path in chosen]


def _nothing(text: str, selector: Selector, modules: Mapping[str, nn.Module], what: str) -> str:
    """Say why a selector selects nothing."""
    classes = {path: _class_names(module) for path, module in modules.items()}
    found = _matching(selector, classes)
    if not found:
        near = difflib.get_close_matches(selector.pattern, {*classes, *chain(*classes.values())}, 3, cutoff=0.3)
        return f"lora: {text!r} selects nothing; nearest names: {', '.join(near) or 'none'}"
    kind = type(modules[found[0]]).__name__
    if _is_linear(modules[found[0]]):
        return (
            f"lora: {text!r} selects {found[0]}, whose weight nn.MultiheadAttention reads without calling it, so that "
            "an adapter would do nothing"
        )
    return f"lora: {text!r} selects no {what}; {found[0] or 'the model'} is a {kind}"


def _matching(selector: Selector, classes: Mapping[str, set[str]]) -> list[str]:
    return [path for path, names in classes.items() if selector.matches_type(names) or selector.matches_path(path)]


def _class_names(module: nn.Module) -> set[str]:
    """Class names a selector may use: a packed layer also answers to those of the layer it replaces."""
    lines = [type(module), *([module.replaces] if isinstance(module, PackedLayer) else [])]
    return {cls.__name__ for line in lines for cls in line.__mro__}


def _join(path: str, name: str) -> str:
    return ".".join(part for part in (path, name) if part)


def _inside(path: str, parents: list[str]) -> bool:
    return any(path == parent or not parent or path.startswith(f"{parent}.") for parent in parents)
