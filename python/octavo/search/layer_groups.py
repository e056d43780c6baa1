"""Groups of layers that get the same format, derived from the module tree and one forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from octavo.data.batches import call_numbered, samples_of
from octavo.errors import DTypeError, FormatError, ModelError
from octavo.model_folder.stored_tensors import stored_state
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.registry import kind_of
from octavo.quant.calibration import undisturbed
from octavo.recipe.decide import decide
from octavo.recipe.expert_families import expert_family
from octavo.recipe.rule import KEEP, Rule
from octavo.recipe.sites import Site, model_sites
from octavo.recipe.text import parse_selector
from octavo.search.layer_sensitivity import INPUT, Group

_MOST_NAMES = 4


@dataclass(frozen=True, eq=False)
class LayerGroup:
    """A group and its tensors: ``sites`` has one entry for each layer, ``unique`` one for each parameter."""

    group: Group
    sites: tuple[Site, ...]
    unique: tuple[Site, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the float tensors; 0 for inputs."""
        return sum(site.nbytes(None) for site in self.unique) if self.group.role == "weight" else 0


@dataclass(frozen=True, eq=False)
class ModelGroups:
    """The groups of a model, the excluded layers (``kept``), bytes outside the groups, parameters, and remarks."""

    groups: tuple[LayerGroup, ...]
    kept: tuple[str, ...]
    fixed_nbytes: int
    parameters: int
    notes: tuple[str, ...]


def find_groups(
    model: nn.Module, batch: Any, roles: Sequence[str], share: Iterable[str], exclude: Iterable[str]
) -> ModelGroups:
    """Return the groups of every linear layer, convolution and embedding of a float model.

    One group has: layers with the same parameter; layers of one module that read the same tensor, such as query, key
    and value; the experts of a mixture, layer by layer; the layers that a selector of ``share`` names. ``exclude``:
    selectors of layers that are not quantized. Raises DTypeError for models that are quantized already, ModelError for
    selectors that select nothing and models without such layers.
    """
    _check_float(model)
    every = model_sites(model)
    sites = candidates(model, every)
    if not sites:
        raise ModelError(f"{type(model).__name__} has no linear layer, convolution or embedding to choose a format for")
    excluded = {path for text in exclude for path in matching(sites, text, "exclude")}
    # A tensor that is also used where it cannot be quantized stays float, or the file would store it twice.
    beyond = {id(site.tensor): site for site in every if site.problem is not None and site.tensor is not None}
    tied_to_kept = {id(site.tensor) for site in sites if site.module in excluded} | beyond.keys()
    free = [site for site in sites if id(site.tensor) not in tied_to_kept]
    if not free:
        raise ModelError(f"{type(model).__name__}: every layer stays as it is; there is none to choose a format for")
    reads, macs = _first_pass(model, batch, free)
    together = _Union(site.module for site in free)
    _join(together, free, lambda site: id(site.tensor))
    _join(together, free, lambda site: reads.get(site.module))
    _join(together, free, lambda site: expert_family(site.module))
    for text in share:
        chosen = [path for path in matching(sites, text, "share") if path in together]
        for path in chosen[1:]:
            together.join(chosen[0], path)
    groups: list[LayerGroup] = []
    for layers in together.sets():
        own = [site for site in free if site.module in layers]
        groups += _of_layers(model, own, roles, macs)
    values, _ = stored_state(model)
    total = sum(value.nbytes for value in values.values() if isinstance(value, Tensor))
    still = sorted(path for path in together if path not in macs)
    notes = [f"layers that no forward pass calls: {', '.join(still[:_MOST_NAMES])}"] if still else []
    notes += [
        f"{site.path} stays as it is: it is {beyond[id(site.tensor)].path}, too; {beyond[id(site.tensor)].problem}"
        for site in sites
        if id(site.tensor) in beyond
    ]
    return ModelGroups(
        tuple(groups),
        tuple(site.module for site in sites if id(site.tensor) in tied_to_kept),
        total - sum(group.nbytes for group in groups),
        sum(parameter.numel() for parameter in model.parameters()),
        tuple(notes),
    )


def matching(sites: Sequence[Site], text: str, label: str) -> list[str]:
    """Return the layers that a selector matches. Raises ModelError with the nearest names where there are none.

    ``label``: names the selector in the error.
    """
    try:
        selector = parse_selector(text)
        options = {selector.kind: selector.pattern, "pick": selector.pick} if selector.kind else {}
        rule = Rule(**options, weight=KEEP)  # type: ignore[arg-type] # keys are those of a rule
        decisions = decide([rule], sites, kind="layer")
    except FormatError as error:
        raise ModelError(f"{label} {text!r}: {error}") from None
    return [decision.site.module for decision in decisions if decision.rule is not None]


def _check_float(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise DTypeError(f"sensitivity is measured on a torch.nn.Module, got {type(model).__name__}")
    for path, module in model.named_modules():
        if isinstance(module, QuantLayer | PackedLayer):
            raise DTypeError(f"{path}: is quantized already; measure the float model, which octavo unpack writes")


def candidates(model: nn.Module, sites: Iterable[Site]) -> list[Site]:
    """Return the weights among ``sites`` that a format can be chosen for."""
    return [site for site in sites if _is_candidate(model, site)]


def _is_candidate(model: nn.Module, site: Site) -> bool:
    if site.role != "weight" or site.problem is not None or not site.is_default:
        return False
    kind = kind_of(model.get_submodule(site.module))
    return kind is not None and kind.packed is not None


def _join(together: _Union, sites: Iterable[Site], key: Any) -> None:
    first: dict[Any, str] = {}
    for site in sites:
        if (own := key(site)) is not None:
            together.join(first.setdefault(own, site.module), site.module)


class _Union:
    """Disjoint sets of names, in the order of the names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._set = {name: {name: None} for name in names}

    def __contains__(self, name: str) -> bool:
        return name in self._set

    def __iter__(self) -> Any:
        return iter(self._set)

    def join(self, one: str, other: str) -> None:
        if (first := self._set[one]) is not (second := self._set[other]):
            first |= second
            for name in second:
                self._set[name] = first

    def sets(self) -> list[dict[str, None]]:
        return list({id(names): names for names in self._set.values()}.values())


def _first_pass(model: nn.Module, batch: Any, sites: Sequence[Site]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the input of each layer that runs once, as an identity, and its multiply-adds for one sample."""
    modules = {model.get_submodule(site.module): site for site in sites}
    reads: dict[str, Any] = {}
    calls: Counter[str] = Counter()
    macs: dict[str, int] = {}
    alive: list[Tensor] = []  # so that no id is used again
    samples = max(samples_of(batch), 1)

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        site = modules[module]
        x = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        calls[site.module] += 1
        if x is None or not isinstance(output, Tensor):
            return
        alive.append(x)
        if not site.is_lookup:
            reads[site.module] = (site.module.rpartition(".")[0], id(x))
        rows = (site.shape or (1,))[1 if site.axis == 0 else 0]
        own = 0 if site.is_lookup else output.numel() * site.elements // max(rows, 1) // samples
        macs[site.module] = macs.get(site.module, 0) + own

    handles = [module.register_forward_hook(see, with_kwargs=True) for module in modules]
    try:
        with undisturbed(model):
            call_numbered(model, batch, 0)
    finally:
        for handle in handles:
            handle.remove()
    return {path: read for path, read in reads.items() if calls[path] == 1}, macs


def _of_layers(
    model: nn.Module, sites: Sequence[Site], roles: Sequence[str], macs: Mapping[str, int]
) -> list[LayerGroup]:
    # A lookup represents the layers it is tied to: a format that it cannot have, none of them can have.
    ordered = sorted(sites, key=lambda site: not site.is_lookup)
    first = {id(site.tensor): site for site in reversed(ordered)}
    unique = [site for site in sites if first[id(site.tensor)] is site]
    name = _name([site.module for site in unique])
    total = sum(macs.get(site.module, 0) for site in sites)
    groups = []
    if "weight" in roles:
        weight = Group(
            name, "weight", tuple(site.module for site in sites), tuple(site.path for site in unique),
            sum(site.elements for site in unique), total,
        )  # fmt: skip
        groups.append(LayerGroup(weight, tuple(sites), tuple(unique)))
    multiplied = [site for site in sites if _takes_input(model, site) and site.module in macs]
    if "input" in roles and multiplied:
        inputs = Group(name + INPUT, "input", tuple(site.module for site in multiplied), macs=total)
        groups.append(LayerGroup(inputs, tuple(multiplied), ()))
    return groups


def _takes_input(model: nn.Module, site: Site) -> bool:
    kind = kind_of(model.get_submodule(site.module))
    return kind is not None and "input" in kind.roles


def _name(layers: Sequence[str]) -> str:
    """Return one name for layers: ``attention.self.query+key+value``, ``mlp.experts.*.down_proj``."""
    if len(layers) == 1:
        return layers[0] or "model"
    family = expert_family(layers[0])
    if family is not None and all(expert_family(layer) == family for layer in layers):
        return family
    parents = {layer.rpartition(".")[0] for layer in layers}
    if len(parents) == 1 and len(layers) <= _MOST_NAMES:
        parent = parents.pop()
        return (f"{parent}." if parent else "") + "+".join(layer.rpartition(".")[2] for layer in layers)
    return f"{layers[0]} and {len(layers) - 1} more"
