"""The format of every operand of a graph: of the present model, or of the model under a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import FormatError
from octavo.graph.records import ModuleRecord, Node, TensorRecord
from octavo.recipe.decide import Decision
from octavo.recipe.model_decisions import decide_sites, layer_plans
from octavo.recipe.sites import join
from octavo.tensors.formats import Format

if TYPE_CHECKING:
    from octavo.graph.graph_content import GraphContent
    from octavo.recipe import Recipe


@dataclass(frozen=True)
class Formats:
    """Formats by module and role, and by weight. ``packed``: bytes of the weights that the recipe packs."""

    tensors: Mapping[str, TensorRecord]
    modules: Mapping[str, ModuleRecord]
    roles: Mapping[str, Mapping[str, str]]
    weights: Mapping[str, str | None]
    packed: Mapping[str, int]

    def of_weight(self, record: TensorRecord) -> str | None:
        """Return the format of a weight, None for a float weight."""
        return self.weights.get(record.name, record.format)

    def weight_bytes(self, record: TensorRecord) -> int:
        """Return the bytes of a weight on disk."""
        if record.name in self.packed:
            return self.packed[record.name]
        return int(record.elements * record.dtype.itemsize) if record.nbytes is None else record.nbytes

    def bytes_in_memory(self, record: TensorRecord) -> int:
        """Return the bytes of a weight while the model runs: packed ones as codes, simulated ones as floats."""
        return self.packed[record.name] if record.name in self.packed else int(record.bytes_in_memory)

    def operand_bits(self, node: Node, name: str, *, is_right: bool) -> int:
        """Return the bits of an operand's elements: from the layer that multiplies, else the tensor, else its dtype."""
        record = self.tensors[name]
        base = self.tensors[record.alias_of] if record.alias_of is not None else record
        if base.kind == "weight":
            text = self.of_weight(base)
            return _bits(text) if text is not None else record.dtype.itemsize * 8
        roles = self._roles(node.module_path)
        role = "weight" if is_right and "weight" in roles else "input"
        if role in roles:
            return _bits(roles[role])
        return _bits(record.format) if record.format is not None else record.dtype.itemsize * 8

    def _roles(self, path: str) -> Mapping[str, str]:
        """Return the formats of the layer that contains an operator: its module, or an enclosing attention module."""
        while True:
            roles = self.roles.get(path, {})
            if roles or not path or self.modules[path].weights:
                return roles
            path = path.rpartition(".")[0]


def _bits(text: str) -> int:
    return 32 if text == "int32" else Format(text).width


def formats_of(graph: GraphContent, recipe: Recipe | None) -> Formats:
    """Return the formats of a graph, under a recipe if there is one.

    Raises FormatError as :meth:`octavo.Recipe.plan`, and for a model that recipes refuse.
    """
    modules = {place: record for record in graph.modules for place in record.paths}
    built = {place: record.formats for place, record in modules.items()}
    if recipe is None:
        return Formats(graph.tensors, modules, built, {}, {})
    if isinstance(graph.sites, str):
        raise FormatError(graph.sites)
    decisions = decide_sites(recipe.rules, graph.sites)
    roles = dict(built)
    for path, plan in layer_plans(decisions).items():
        texts = {
            role: str(spec.format) for role in ("weight", "input", "output", "bias") if (spec := getattr(plan, role))
        }
        for place in modules[path].paths if path in modules else ():
            roles[place] = texts
    names: dict[int, str] = {}
    for decision in decisions:
        site = decision.site
        if site.tensor is not None and site.name is not None:
            known = [name for path in site.paths if (name := join(path, site.name)) in graph.tensors]
            if known:
                names.setdefault(id(site.tensor), known[0])
    weights: dict[str, str | None] = {}
    packed: dict[str, int] = {}
    # A tied tensor that is packed in one layer and float in another is stored twice in the packed model.
    stay = {id(one.site.tensor) for one in decisions if one.site.tensor is not None and one.format is None}
    for decision in decisions:
        site = decision.site
        if decision.rule is None or site.tensor is None or id(site.tensor) not in names:
            continue
        name = names[id(site.tensor)]
        if decision.format is None and weights.get(name) is not None:
            continue
        weights[name] = None if decision.format is None else str(decision.format)
        beside = decision.format is not None and id(site.tensor) in stay
        packed[name] = site.nbytes(decision.format) + (site.nbytes(None) if beside else 0)
    for name, parts in _by_parameter(decisions, modules).items():
        if name in graph.tensors and any(part.format is not None for part in parts):
            formats = [part.format for part in parts if part.format is not None]
            weights[name] = str(max(formats, key=lambda fmt: fmt.width))
            packed[name] = sum(part.site.nbytes(part.format) for part in parts)
    return Formats(graph.tensors, modules, roles, weights, packed)


def _by_parameter(decisions: Iterable[Decision], modules: Mapping[str, ModuleRecord]) -> dict[str, list[Decision]]:
    """Return the decisions about parts of each parameter whose module is made of layers where one has a format."""
    parts: dict[str, list[Decision]] = {}
    for decision in decisions:
        site = decision.site
        if site.part_of and site.tensor is not None and site.module not in modules:
            parts.setdefault(site.part_of[0], []).append(decision)
    return parts
