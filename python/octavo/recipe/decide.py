"""Decides the format of each tensor: the last rule that matches it wins."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from octavo.errors import FormatError
from octavo.recipe.explanation_rows import KEPT, UNNAMED
from octavo.recipe.rule import Rule
from octavo.recipe.selectors import Selector
from octavo.recipe.sites import Site, default_layers
from octavo.recipe.spec import ROLES, Spec
from octavo.tensors.formats import Format


@dataclass
class Decision:
    """The decision about a tensor: ``spec`` None leaves it as it is, by ``rule`` or for lack of one (None).

    ``overridden``: the rules that matched before, in their order. ``tied_to``: the tensor that the decision is of,
    where no rule matched this one and both are one parameter.
    """

    site: Site
    spec: Spec | None = None
    rule: Rule | None = None
    overridden: list[Rule] = field(default_factory=list)
    tied_to: Site | None = None

    @property
    def format(self) -> Format | None:
        """Format of the tensor, None where it is kept: fp32 leaves every value of a model as it is."""
        is_kept = self.spec is None or (self.site.of_model and str(self.spec.format) == "fp32")
        return None if self.spec is None or is_kept else self.spec.format

    @property
    def reason(self) -> str | None:
        """Why the tensor stays as it is; None where it has a format."""
        if self.format is not None:
            return None
        return self.site.problem or (UNNAMED if self.rule is None else KEPT)


def decide(rules: Sequence[Rule], sites: Sequence[Site], *, kind: str) -> list[Decision]:
    """Return the decision about every site, in order. ``kind`` names what sites are of in errors: layer or tensor.

    Raises FormatError for a rule that matches nothing, or nothing that has the role it gives a format to.
    """
    decisions = {site: Decision(site) for site in sites}
    for rule in rules:
        selected = _picked(rule, [site for site in sites if _selects(rule.selector, site)])
        if not selected:
            raise FormatError(_nothing(rule, sites, kind))
        for role, spec in rule.gives:
            for site in _given(rule, role, spec, selected):
                decision = decisions[site]
                if decision.rule:
                    decision.overridden.append(decision.rule)
                decision.rule, decision.spec = rule, spec
    return list(decisions.values())


def _selects(selector: Selector, site: Site) -> bool:
    if selector.kind is None:
        return site.is_default
    return selector.matches_type(site.classes) or any(selector.matches_path(name) for name in site.names)


def _picked(rule: Rule, selected: list[Site]) -> list[Site]:
    """Return the sites of the first or last layer that has a role the rule is about, where it asks for one."""
    roles = [role for role, _ in rule.gives]
    usable = [site.module for site in selected if site.problem is None and site.role in roles]
    if rule.selector.pick is None or not usable:
        return selected
    chosen = usable[0 if rule.selector.pick == "first" else -1]
    return [site for site in selected if site.module == chosen]


def _given(rule: Rule, role: str, spec: Spec | None, selected: list[Site]) -> list[Site]:
    """Return the sites of one role that a rule decides about."""
    matched = [site for site in selected if site.role == role]
    if spec is None:
        return matched
    usable = [s for s in matched if s.problem is None and (not s.needs_name or rule.selector.is_literal)]
    if usable:
        return usable
    if not matched:
        first = selected[0]
        kind = f" ({first.classes[0]})" if first.classes else ""
        lacks = ", ".join(sorted({site.role for site in selected if not site.problem}, key=ROLES.index))
        has = f"it has {lacks}" if lacks else first.problem
        raise FormatError(
            f"{first.module or first.path}{kind}: rule '{rule}' gives a format to its {role}, and there is none; {has}"
        )
    site = max(matched, key=lambda site: (site.problem is not None, math.prod(site.shape or ())))  # the telling one
    problem = site.problem or f"shape {site.shape}; a vector is quantized where a rule names it in full"
    takes = f"; layers that do: {default_layers()} and modules that declare quant_roles"
    others = takes if "takes no formats" in problem else ""
    raise FormatError(f"{site.path}: rule '{rule}' matches only what cannot be packed or quantized: {problem}{others}")


def _nothing(rule: Rule, sites: Iterable[Site], kind: str) -> str:
    """Return the message about a rule that matches nothing, with the nearest names."""
    selector = rule.selector
    if selector.kind is None and any("PackedLayer" in site.classes for site in sites):
        return (
            f"rule '{rule}' matches no {kind}: those of the model are packed already; octavo unpack writes its float "
            "model, and model.dequantize() of a model of transformers returns it"
        )
    if selector.kind is None:
        return f"rule '{rule}': {selector} matches no {kind}; name what is meant, as in 'encoder.** {rule}'"
    if selector.kind == "type":
        classes = sorted({name for site in sites for name in site.classes} - {"object", "Module"})
        near = difflib.get_close_matches(selector.pattern, classes, n=3, cutoff=0.3) or classes[:5]
        message = f"rule '{rule}' matches no {kind}; nearest types: {', '.join(near) or 'none'}"
        path = replace(selector, kind="glob")
        is_path = any(_selects(path, site) for site in sites)
        return f"{message}; a path is written '{path}'" if is_path else message
    paths = [site.module if kind == "layer" else site.path for site in sites]
    hint = ""
    if any(path.startswith(f"{selector.pattern}.") for path in paths):
        hint = f"; '{selector.pattern}' holds {kind}s: select them with '{selector.pattern}.**'"
    elif "*" in selector.pattern and any(_crossing(selector).matches_path(name) for s in sites for name in s.names):
        hint = "; '*' does not cross a dot, '**' does"
    elif "," in selector.pattern:
        hint = "; rules are separated by ';'"
    elif near := difflib.get_close_matches(selector.pattern, ROLES, n=1):
        hint = f"; is the role {near[0]!r} meant?"
    usable = [site.module if kind == "layer" else site.path for site in sites if site.problem is None]
    names = ", ".join(_nearest(selector.pattern, usable)) or "none"
    return f"rule '{rule}' matches no {kind}; nearest names: {names}{hint}"


def _crossing(selector: Selector) -> Selector:
    """Return the glob with every ``*`` as ``**``."""
    if selector.kind != "glob":
        return selector
    return replace(selector, pattern=selector.pattern.replace("**", "*").replace("*", "**"))


def _nearest(pattern: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return the names that share the longest run of characters with a pattern."""
    literal = pattern.replace("*", "").replace("?", "").lower()

    def shared(name: str) -> int:
        matcher = difflib.SequenceMatcher(None, literal, name.lower(), autojunk=False)
        return matcher.find_longest_match(0, len(literal), 0, len(name)).size

    return sorted(dict.fromkeys(names), key=shared, reverse=True)[:count]
