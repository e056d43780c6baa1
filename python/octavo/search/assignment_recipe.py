"""to_recipe: an assignment of formats to groups becomes an ordinary recipe, of few rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from octavo.errors import ConfigError
from octavo.recipe import Recipe, Rule
from octavo.recipe.rule import KEEP
from octavo.recipe.selectors import Selector
from octavo.search.layer_sensitivity import ROLES, Sensitivity
from octavo.search.pareto_front import Point
from octavo.storage.arguments import checks_arguments

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a path that is a number
_WILD = re.compile(r"[*?\[]")

Given = tuple[str | None, ...]  # the format text of each role, in the order of ROLES; None: the layer has no such role


@checks_arguments
def to_recipe(point: Point | Mapping[str, str], sensitivity: Sensitivity) -> Recipe:
    """Return the recipe that gives each group of layers its format of ``point``: a Point, or format texts by group.

    First a rule for all layers, if most have one format; then one for each set of layers whose paths differ in numbers
    alone, such as ``encoder.layer.*.output.dense``; then the exceptions by name. Groups with ``keep``, and layers that
    were excluded from the search, stay as they are. Raises ConfigError for a choice that lacks a group or names others.
    """
    choice = point.choice if isinstance(point, Point) else point
    wanted = _wanted(choice, sensitivity)
    rules: list[Rule] = []
    held: dict[str, Given] = dict.fromkeys(wanted, (KEEP,) * len(ROLES))

    def give(selector: Mapping[str, str], reached: Iterable[str], given: Given) -> None:
        told = {role: text for role, text in zip(ROLES, given, strict=True) if text is not None}
        rules.append(Rule(**selector, **told))  # type: ignore[arg-type] # keys are those of a rule
        for layer in reached:
            held[layer] = tuple(new or old for new, old in zip(given, held[layer], strict=True))

    def differing(layers: Iterable[str], given: Given | None = None) -> int:
        return sum(not _agrees(wanted[layer], held[layer] if given is None else given) for layer in layers)

    # A rule without a selector means the layers of the default selection, excluded ones too: these are told to stay.
    base = _common(wanted.values())
    plain = all(group.is_default for group in sensitivity.groups)
    if plain and 1 + differing(wanted, base) < differing(wanted):
        give({}, wanted, base)
    for pattern, layers in _families(wanted).items():
        common = _common(wanted[layer] for layer in layers)
        if 1 + differing(layers, common) < differing(layers):
            give({"glob": pattern}, layers, common)
    for layer, given in wanted.items():
        if not _agrees(given, held[layer]):
            give({"glob" if _is_plain(layer) else "name": layer}, (layer,), given)
    return Recipe(rules)


def _agrees(wanted: Given, held: Given) -> bool:
    return all(want is None or want == have for want, have in zip(wanted, held, strict=True))


def _common(given: Iterable[Given]) -> Given:
    """Return the most frequent format of each role."""
    roles = zip(*given, strict=True)
    counts = [Counter(text for text in texts if text is not None).most_common(1) for texts in roles]
    return tuple(count[0][0] if count else None for count in counts)


def _wanted(choice: Mapping[str, str], sensitivity: Sensitivity) -> dict[str, Given]:
    """Return the formats of each layer, those that stay among them."""
    names = {group.name for group in sensitivity.groups}
    if names != set(choice):
        odd = sorted(names ^ set(choice))[0]
        raise ConfigError(
            f"an assignment names every group once; {odd!r} is {'missing' if odd in names else 'no group'}"
        )
    roles = [role for role in ROLES if any(group.role == role for group in sensitivity.groups)]
    stays = [KEEP if role in roles else None for role in ROLES]
    found: dict[str, list[str | None]] = {}
    for group in sensitivity.groups:
        for layer in group.layers:
            found.setdefault(layer, [None] * len(ROLES))[ROLES.index(group.role)] = choice[group.name]
    return {layer: tuple(given) for layer, given in (found | dict.fromkeys(sensitivity.kept, stays)).items()}


def _families(layers: Iterable[str]) -> dict[str, list[str]]:
    """Return the layers that each pattern with ``*`` for numbers matches, two or more, of all that there are."""
    known = list(layers)
    found: dict[str, list[str]] = {}
    for pattern in dict.fromkeys(_NUMBER.sub("*", layer) for layer in known):
        if "*" not in pattern or any(_WILD.search(layer) for layer in known):
            continue
        selector = Selector("glob", pattern)
        matched = [layer for layer in known if selector.matches_path(layer)]
        if len(matched) > 1:
            found[pattern] = matched
    return found


def _is_plain(layer: str) -> bool:
    return bool(layer) and not _WILD.search(layer)
