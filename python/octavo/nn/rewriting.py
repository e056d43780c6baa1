"""Modules whose weights are no layers, as modules of the same outputs that are made of layers: one table.

Rules, solvers, packed kernels and folders know layers alone. A module that multiplies parameters of its own, such as
the batched experts of a mixture, is rewritten: its parameters become the weights of ``nn.Linear`` layers, inside a
module that computes the same. Weights of the layers are views of the parameters; no value is copied. Recipes see the
layers by their paths (:func:`octavo.recipe.sites.model_sites`). A model gets the new module in the place of its own
where a recipe gives a format to something inside (:class:`octavo.quant.replace_layers.Replacement`), and only there.

A rewriting is added in a file of this folder that ends with :func:`register_rewriting`::

    register_rewriting(Rewriting("name in files", fits, origins, build))

- ``fits(module)`` tells whether a module is of the kind, by structure or class; its ``forward`` has to be one that the
  new module stands in for.
- ``origins(module)`` says, for each parameter that goes, which weights and biases of layers it becomes: an
  :class:`Origin`, parts of one size that follow each other along the parameter's first axis.
- ``build(module, parts)`` returns the new module; ``parts`` are Parameters by the names that origins give them.
  :func:`bare_copy` keeps all else of the old module, :func:`linear_of` makes layers without initializing them.

Saving, loading, unpacking and packing tensor by tensor need nothing else: they split and join tensors by the origins.
The forward of the new module calls its layers; ``tests/nn/test_rewriting.py`` holds every rewriting to the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from octavo.nn.model_copies import shared_copy
from octavo.nn.replace_modules import Undo, replace_modules

L = TypeVar("L", bound=nn.Linear)
_OURS = "octavo.lab."  # networks of the laboratory are read by the engine, by the names that they have
_MARK = "rewritten_from"  # attribute of a new module: what it was made of


@dataclass(frozen=True)
class Origin:
    """A parameter that became tensors of layers: ``parts`` of one size, behind each other along its first axis.

    ``shape``: of the parameter. ``part_shape``: of each part in its layer. ``is_turned``: a part is the transpose of
    what the parameter has.
    """

    shape: tuple[int, ...]
    parts: tuple[str, ...]
    part_shape: tuple[int, ...]
    is_turned: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether one layer has the parameter as it is."""
        return len(self.parts) == 1 and self.part_shape == self.shape and not self.is_turned

    def split(self, tensor: Tensor) -> dict[str, Tensor]:
        """Return the parts of a tensor of this shape by name: views, where it is contiguous."""
        stored = tensor.reshape(len(self.parts), *(reversed(self.part_shape) if self.is_turned else self.part_shape))
        return {name: stored[number].T if self.is_turned else stored[number] for number, name in enumerate(self.parts)}

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the parameter that parts make up, of the dtype and device of the first one."""
        whole = torch.empty_like(parts[self.parts[0]], memory_format=torch.contiguous_format).new_empty(self.shape)
        for name, place in self.split(whole).items():
            place.copy_(parts[name])
        return whole


@dataclass(frozen=True)
class Rewriting:
    """One kind of module that can be made of layers. The module's docstring says how one is added.

    ``is_last``: taken where no other rewriting fits.
    """

    name: str
    fits: Callable[[nn.Module], bool]
    origins: Callable[[nn.Module], Mapping[str, Origin]]
    build: Callable[[nn.Module, Mapping[str, nn.Parameter]], nn.Module]
    is_last: bool = False


@dataclass(frozen=True)
class RewrittenFrom:
    """What a module was made of: the name of the rewriting, and where the parameters went."""

    name: str
    origins: Mapping[str, Origin]


_REWRITINGS: dict[str, Rewriting] = {}


def register_rewriting(rewriting: Rewriting) -> Rewriting:
    """Add a rewriting and return it; one of the same name is replaced."""
    _REWRITINGS[rewriting.name] = rewriting
    return rewriting


def rewriting_of(module: nn.Module) -> Rewriting | None:
    """Return the rewriting that takes a module; None where its parameters are those of layers, or nobody's."""
    if isinstance(module, torch.jit.ScriptModule):  # its parts cannot be replaced
        return None
    ordered = sorted(_REWRITINGS.values(), key=lambda rewriting: rewriting.is_last)
    return next((rewriting for rewriting in ordered if rewriting.fits(module)), None)


def rewritten(module: nn.Module, shared: Collection[int] = ()) -> nn.Module | None:
    """Return the module made of layers that computes what ``module`` does; None where no rewriting takes it.

    ``shared``: parameters, by ``id``, that other modules hold, too: a layer holds the same one, and where it would hold
    a part or another shape, the module stays as it is.
    Both hold the same memory: the layers' weights are views of the parameters of ``module``, and parts, hooks and
    attributes that stay are shared.
    """
    rewriting = rewriting_of(module)
    if rewriting is None:
        return None
    origins = dict(rewriting.origins(module))
    parts: dict[str, nn.Parameter] = {}
    for name, origin in origins.items():
        whole = module.get_parameter(name)
        is_whole = origin.part_shape == origin.shape and not origin.is_turned  # the part is the parameter itself
        if is_lazy(whole) or (id(whole) in shared and not is_whole):
            return None
        if id(whole) in shared:
            parts[origin.parts[0]] = whole
            continue
        if origin.is_whole:  # the Parameter itself: what it is tied to stays tied
            parts[origin.parts[0]] = whole
            continue
        for part, values in origin.split(whole.detach()).items():
            parts[part] = nn.Parameter(values, requires_grad=whole.requires_grad)
    new = rewriting.build(module, parts)
    vars(new)[_MARK] = RewrittenFrom(rewriting.name, origins)
    new.register_load_state_dict_pre_hook(_split_state)
    return new


def _split_state(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a state dict of the module that this one stands in for load: parameters become their parts."""
    record = made_from(module)
    for name, origin in () if record is None else record.origins.items():
        whole = state.get(prefix + name)
        if isinstance(whole, Tensor) and tuple(whole.shape) == origin.shape:
            del state[prefix + name]
            state.update({prefix + part: values for part, values in origin.split(whole).items()})


def joined_state(model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict of a model in which parts are the parameters again that they were made of.

    Parts of a packed layer, which has no dense weight, stay as they are.
    """
    joined = dict(state)
    for path, record in rewritten_modules(model):
        prefix = f"{path}." if path else ""
        for name, origin in record.origins.items():
            parts = {part: joined.get(prefix + part) for part in origin.parts}
            if all(isinstance(value, Tensor) for value in parts.values()):
                for part in parts:
                    del joined[prefix + part]
                joined[prefix + name] = origin.join({part: value for part, value in parts.items() if value is not None})
    return joined


def made_from(module: nn.Module) -> RewrittenFrom | None:
    """Return what a module of a rewriting was made of; None for any other module."""
    record = vars(module).get(_MARK)
    return record if isinstance(record, RewrittenFrom) else None


def rewritten_modules(model: nn.Module) -> Iterator[tuple[str, RewrittenFrom]]:
    """Yield the modules of rewritings in a model by path, with what each was made of."""
    for path, module in model.named_modules():
        if (record := made_from(module)) is not None:
            yield path, record


def layers_in_reach(model: nn.Module) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """Return the modules of a model by every path, as recipes see them, and those that a rewriting would put there.

    The first has the parts of rewritten modules instead of those of the modules that they stand in for; the second has
    the rewritten modules by the paths of ``named_modules()``. The model stays as it is.
    """
    reached: dict[str, nn.Module] = {}
    stand_ins: dict[str, nn.Module] = {}
    known: dict[nn.Module, nn.Module | None] = {}
    shared = _shared_parameters(model)

    def walk(path: str, module: nn.Module, is_ours: bool) -> None:
        is_ours = is_ours or type(module).__module__.startswith(_OURS)
        if module not in known:
            known[module] = new = None if is_ours else rewritten(module, shared)
            if new is not None:
                stand_ins[path] = new
        reached[path] = here = known[module] or module
        for name, part in here._modules.items():
            if part is not None:
                walk(f"{path}.{name}" if path else name, part, is_ours)

    walk("", model, False)
    return reached, stand_ins


def _shared_parameters(model: nn.Module) -> set[int]:
    """Return the parameters, by ``id``, that several modules hold: each is one tensor, and stays one."""
    holders = Counter(id(own) for module in model.modules() for own in set(module._parameters.values()))
    return {parameter for parameter, count in holders.items() if count > 1}


def new_parts(module: nn.Module, old: nn.Module) -> set[nn.Module]:
    """Return the modules in a rewritten ``module`` that the one it stands in for has not."""
    return set(module.modules()) - set(old.modules())


def rewrite_modules(model: nn.Module, paths: Collection[str] | None = None, undo: Undo | None = None) -> nn.Module:
    """Put rewritten modules into a model: all that are possible, or those around the layers at ``paths``.

    Returns ``model``, or what takes its own place. ``undo``: gets calls that put everything back.
    """
    _, stand_ins = layers_in_reach(model)
    chosen = {
        id(model.get_submodule(path)): new
        for path, new in stand_ins.items()
        if paths is None or any(not path or one.startswith(f"{path}.") for one in paths)
    }
    return replace_modules(model, chosen, undo) if chosen else model


def made_of_layers(model: nn.Module) -> nn.Module:
    """Return ``model`` itself where no rewriting takes a module of it, else a copy over its memory, made of layers.

    For whoever measures layer by layer: what it quantizes then are the layers that recipes name.
    """
    if any(rewriting_of(module) is not None for module in model.modules()):
        return rewrite_modules(shared_copy(model))
    return model


# --- for rewritings ---------------------------------------------------------------------------------------------------


def bare_copy(module: nn.Module, cls: type[nn.Module], without: Collection[str] = ()) -> Any:
    """Return a module of another class with the attributes, hooks, parts and mode of ``module``.

    ``without``: names of parameters and parts that the new module has not. Registries are its own, what they hold is
    shared.
    """
    new = cls.__new__(cls)
    new.__dict__.update({name: _own(name, value) for name, value in vars(module).items() if name != _MARK})
    for registry in (new._parameters, new._buffers, new._modules):
        for name in without:
            registry.pop(name, None)
    return new


def _own(name: str, value: Any) -> Any:
    """Return a registry's copy, and anything else as it is."""
    is_registry = name.endswith("_hooks") or name in ("_parameters", "_buffers", "_modules")
    return type(value)(value) if is_registry else value


def linear_of(weight: nn.Parameter, bias: nn.Parameter | None = None, cls: type[L] = nn.Linear) -> L:  # type: ignore[assignment] # mypy knows no default of a type variable
    """Return a linear layer of Parameters ``[out, in]`` and ``[out]``; nothing is initialized."""
    layer = cls.__new__(cls)
    nn.Module.__init__(layer)
    layer.out_features, layer.in_features = weight.shape
    layer.weight = weight
    layer.register_parameter("bias", bias)
    return layer
