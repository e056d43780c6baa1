"""Selection of the layers to adapt and of the modules to train fully."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from itertools import chain

from torch import nn

from octavo.errors import ModelError
from octavo.lora.adapter import ATTRIBUTE, Adapters, adapters
from octavo.lora.lora_config import LoraConfig
from octavo.nn import PackedLayer, PackedLinear
from octavo.recipe import Selector, parse_selector


def target_paths(model: nn.Module, config: LoraConfig) -> list[str]:
    """Return the paths of the linear layers to adapt: those selected by ``targets`` and not by ``train``.

    Raises ModelError for a selector that selects no layer, and for layers that cannot be adapted.
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
    """Return the paths of the modules that are fully trained.

    Raises ModelError for a selector that selects nothing to train, and for modules that cannot be trained.
    """
    paths = _select(model, config.train, _has_parameters, "module with parameters")
    for path in paths:
        for child, part in model.get_submodule(path).named_modules():
            if isinstance(part, PackedLayer):
                where = _join(path, child)
                raise ModelError(f"lora: {where} is packed, and codes are not trained; adapt it instead of train=")
    _refuse_ties(model, paths)
    return paths


def as_linear(module: nn.Module) -> nn.Linear | PackedLinear:
    """Return a module as a layer that can be adapted."""
    assert isinstance(module, nn.Linear | PackedLinear)
    return module


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | PackedLinear)


def _has_parameters(module: nn.Module) -> bool:
    return isinstance(module, PackedLayer) or any(True for _ in module.parameters())


def _refuse_ties(model: nn.Module, paths: list[str]) -> None:
    """Raise ModelError if training a module would change the frozen base through a tied parameter."""
    names = list(model.named_parameters(remove_duplicate=False))
    aliases = _aliases(model)
    places = [alias for path in paths for alias in aliases[path]]
    inside = {id(parameter): name for name, parameter in names if _inside(name, places)}
    for name, parameter in names:
        if id(parameter) in inside and not _inside(name, places):
            tied = inside[id(parameter)]
            raise ModelError(f"lora: {tied} is tied to {name}; name both modules in train=, or neither")


def _select(model: nn.Module, texts: tuple[str, ...], fits: Callable[[nn.Module], bool], label: str) -> list[str]:
    """Return the paths of the modules that fit and match a selector, in the model's order.

    A module with several paths matches by each of them. Adapters are excluded, and so are modules inside
    ``nn.MultiheadAttention``, which reads their weights without calling them. ``label``: names the modules in errors.
    """
    own = [_join(path, ATTRIBUTE) for path in adapters(model)]
    modules = {path: module for path, module in model.named_modules() if not _inside(path, own)}
    attentions = [path for path, module in modules.items() if isinstance(module, nn.MultiheadAttention)]
    usable = {
        path: _class_names(module)
        for path, module in modules.items()
        if fits(module) and not any(path.startswith(f"{parent}.") for parent in attentions)
    }
    aliases = _aliases(model)
    chosen: set[str] = set()
    for text in texts:
        selector = parse_selector(text)
        matches = _matching(selector, usable, aliases)
        if not matches:
            raise ModelError(_nothing(text, selector, modules, aliases, label))
        chosen.update(matches[:1] if selector.pick == "first" else matches[-1:] if selector.pick == "last" else matches)
    return [path for path in usable if path in chosen]


def _nothing(
    text: str, selector: Selector, modules: Mapping[str, nn.Module], aliases: Mapping[str, list[str]], label: str
) -> str:
    """Return the error message of a selector that selects nothing."""
    classes = {path: _class_names(module) for path, module in modules.items()}
    matches = _matching(selector, classes, aliases)
    if not matches:
        near = _nearest(selector.pattern, sorted({*classes, *chain(*classes.values())}))
        return f"lora: {text!r} selects nothing; nearest names: {', '.join(near) or 'none'}"
    kind = type(modules[matches[0]]).__name__
    if _is_linear(modules[matches[0]]):
        return (
            f"lora: {text!r} selects {matches[0]}, whose weight nn.MultiheadAttention reads without calling it, "
            "so that an adapter would do nothing"
        )
    return f"lora: {text!r} selects no {label}; {matches[0] or 'the model'} is a {kind}"


def _nearest(pattern: str, names: list[str], count: int = 3) -> list[str]:
    """Return the names most similar to a pattern, compared in full or after the last dot."""

    def likeness(name: str) -> float:
        pairs = ((pattern, name), (pattern.rpartition(".")[2], name.rpartition(".")[2]))
        return max(difflib.SequenceMatcher(None, a, b).ratio() for a, b in pairs)

    near = sorted(((likeness(name), name) for name in names if name), key=lambda pair: -pair[0])[:count]
    return [name for ratio, name in near if ratio >= 0.3]


def _aliases(model: nn.Module) -> dict[str, list[str]]:
    """Return all paths of each module by its first."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    return {known[0]: known for known in paths.values()}


def _matching(selector: Selector, classes: Mapping[str, set[str]], aliases: Mapping[str, list[str]]) -> list[str]:
    return [
        path
        for path, names in classes.items()
        if selector.matches_type(names) or any(selector.matches_path(known) for known in aliases[path])
    ]


def _class_names(module: nn.Module) -> set[str]:
    """Return the class names by which a selector may match; a packed layer also has those of its float layer."""
    lines = [type(module), *([module.replaces] if isinstance(module, PackedLayer) else [])]
    return {cls.__name__ for line in lines for cls in line.__mro__}


def _join(path: str, name: str) -> str:
    return ".".join(part for part in (path, name) if part)


def _inside(path: str, parents: list[str]) -> bool:
    return any(path == parent or not parent or path.startswith(f"{parent}.") for parent in parents)
