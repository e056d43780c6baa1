"""Decides formats for a model: layers take only what they can hold, and layers that share a tensor must agree."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from octavo.errors import FormatError
from octavo.recipe.decide import Decision, decide
from octavo.recipe.fit import integer_misfit
from octavo.recipe.rule import Rule, spec_text
from octavo.recipe.sites import Site, model_sites
from octavo.recipe.spec import INT32, LayerPlan, Spec


def decide_model(rules: Sequence[Rule], model: nn.Module) -> list[Decision]:
    """Return the decision about every tensor of a model's layers, and about every parameter outside them.

    Raises FormatError where a rule matches nothing or a layer cannot hold what it is given, naming both.
    """
    return decide_sites(rules, model_sites(model))


def decide_sites(rules: Sequence[Rule], sites: Sequence[Site]) -> list[Decision]:
    """Return the decisions about the sites of a model: :func:`decide_model` where the model itself is not at hand."""
    decisions = decide(rules, sites, kind="layer")
    _tie(decisions, rules)
    _settle_gptq(decisions)
    _check_integer_biases(decisions)
    return decisions


def layer_plans(decisions: Sequence[Decision]) -> dict[str, LayerPlan]:
    """Return what each layer gets, layers without a quantized tensor left out."""
    by_layer: dict[str, dict[str, Spec]] = {}
    for decision in decisions:
        if decision.spec is not None and decision.format is not None:
            by_layer.setdefault(decision.site.module, {})[decision.site.role] = decision.spec
    return {path: LayerPlan(**specs) for path, specs in by_layer.items()}


def _tie(decisions: Sequence[Decision], rules: Sequence[Rule]) -> None:
    """Give one parameter of several layers one decision. Raises FormatError where rules disagree about it."""
    shared: dict[int, list[Decision]] = {}
    for decision in decisions:
        if decision.site.tensor is not None and decision.site.problem is None:
            shared.setdefault(id(decision.site.tensor), []).append(decision)
    for group in shared.values():
        decided = [decision for decision in group if decision.rule]
        if not decided:
            continue
        first = decided[0]
        other = next((decision for decision in decided if decision.spec != first.spec), None)
        if other is not None:
            meant = max(first, other, key=lambda decision: _place(decision.rule, rules))
            raise FormatError(
                f"{first.site.path} and {other.site.path} are one tensor, and rule '{first.rule}' gives it "
                f"{spec_text(first.spec)}, rule '{other.rule}' {spec_text(other.spec)}: add a rule that gives "
                f"both the same, such as '{_same_for_all(group, meant.spec)}'"
            )
        for decision in group:
            if not decision.rule:
                decision.spec, decision.rule, decision.tied_to = first.spec, first.rule, first.site


def _place(rule: Rule | None, rules: Sequence[Rule]) -> int:
    """Return the place of a rule in a recipe: the last one where a rule stands in it twice."""
    return max(place for place, other in enumerate(rules) if other is rule)


def _same_for_all(group: Sequence[Decision], spec: Spec | None) -> str:
    """Return the rules that give a tensor one spec under each of its names; an embedding has no inputs for gptq."""
    if spec is not None and _is_gptq(spec) and any(decision.site.is_lookup for decision in group):
        spec = Spec(spec.format)
    others = [decision.site for decision in group if decision.rule and decision.spec != spec]
    return "; ".join(f"{_path_text(site)} {spec_text(spec)}" for site in others)


def _path_text(site: Site) -> str:
    """Return the path of a parameter as a rule writes it."""
    return str(Rule(glob=site.path, keep=True)).removesuffix(" keep")


def _is_gptq(spec: Spec) -> bool:
    return spec.calibration is not None and spec.calibration.method == "gptq"


def _settle_gptq(decisions: Sequence[Decision]) -> None:
    """Refuse gptq for embeddings; give other weights that no one matrix multiplies the format alone.

    Those are tables of a module's own, transposed convolutions and layers with a ``forward`` of their own, where the
    rule means many layers. A rule that names one in full is refused where data is looked at.
    """
    for decision in decisions:
        spec, site, tensor = decision.spec, decision.site, decision.site.tensor
        if not spec or not _is_gptq(spec) or decision.rule is None:
            continue
        same = [_path_text(other.site) for other in decisions if tensor is not None and other.site.tensor is tensor]
        is_alone = len(same) < 2 and not decision.rule.selector.is_literal
        if is_alone and (not site.is_solved or (site.is_lookup and site.part_of)):
            decision.spec = Spec(spec.format, None, spec.scale)
        elif site.is_lookup:
            raise FormatError(
                f"{decision.site.path}: rule '{decision.rule}' asks for gptq, which needs the inputs of a product, and "
                f"an embedding has none: add '{'; '.join(f'{path} {spec.format}' for path in same)}' after it"
            )


def _check_integer_biases(decisions: Sequence[Decision]) -> None:
    """Refuse a bias 'int32' beside tensors whose product is not one of integers."""
    spec_of = {(decision.site.module, decision.site.role): decision.spec for decision in decisions}
    for decision in decisions:
        if decision.spec is not None and decision.spec.format == INT32:
            module = decision.site.module
            if problem := integer_misfit(spec_of.get((module, "weight")), spec_of.get((module, "input"))):
                raise FormatError(f"{decision.site.path}: rule '{decision.rule}': {problem}")
