"""to_recipe: an assignment of formats to groups becomes an ordinary recipe, of few rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from octavo.errors import ConfigError
from octavo.recipe import Recipe, Rule
from octavo.recipe.expert_families import expert_family
from octavo.recipe.rule import KEEP
from octavo.recipe.selectors import Selector
from octavo.search.layer_sensitivity import ROLES, Sensitivity
from octavo.search.pareto_front import Point
from octavo.storage.arguments import checks_arguments

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a path that is a number
_WILD = re.compile(r"[*?\[]")

RoleFormats = tuple[str | None, ...]  # the format text of each role, in the order of ROLES; None: no such role


@checks_arguments
def to_recipe(point: Point | Mapping[str, str], sensitivity: Sensitivity) -> Recipe:
    """Return the recipe that gives each group of layers its format.

    The first rule is for all layers, if most share one format. Then follows a rule for each set of layers whose paths
    differ only in numbers, such as ``encoder.layer.*.output.dense``, for the experts of a mixture that differ from
    those of others, then a rule for each exception by name. Groups
    with ``keep``, and layers that were excluded from the search, are not quantized.

    Args:
        point: a Point, or format texts by group.
        sensitivity: of the same model.

    Returns:
        The recipe.

    Raises:
        ConfigError: for a choice that lacks a group or names an unknown one.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        >>> sensitivity = octavo.search.measure_sensitivity(model, [torch.randn(16, 64)], ["mxint8", "mxint4"])
        >>> print(octavo.search.to_recipe({"0": "mxint4", "2": "mxint8"}, sensitivity))
        0 mxint4; 2 mxint8
    """
    choice = point.choice if isinstance(point, Point) else point
    wanted = _wanted(choice, sensitivity)
    rules: list[Rule] = []
    current: dict[str, RoleFormats] = dict.fromkeys(wanted, (KEEP,) * len(ROLES))

    def give(selector: Mapping[str, str], reached: Iterable[str], formats: RoleFormats) -> None:
        rules.append(_rule(selector, formats))
        for layer in reached:
            current[layer] = tuple(new or old for new, old in zip(formats, current[layer], strict=True))

    def differing(layers: Iterable[str], formats: RoleFormats | None = None) -> int:
        return sum(not _agrees(wanted[layer], current[layer] if formats is None else formats) for layer in layers)

    # A rule without a selector also reaches layers excluded from the search: later rules set these to `keep`.
    base = _common(wanted.values())
    plain = all(group.is_default for group in sensitivity.groups)
    if plain and 1 + differing(wanted, base) < differing(wanted):
        give({}, wanted, base)
    for pattern, layers in _families(wanted).items():
        common = _common(wanted[layer] for layer in layers)
        if 1 + differing(layers, common) < differing(layers):
            give({"glob": pattern}, layers, common)
    for layer, target in wanted.items():
        if not _agrees(target, current[layer]):
            give({"glob" if _is_plain(layer) else "name": layer}, (layer,), target)
    return Recipe(rules)


def rule_of_each(choice: Mapping[str, str], sensitivity: Sensitivity) -> Recipe:
    """Return the recipe of :func:`to_recipe` with a rule for each layer: none that it returns has a longer text."""
    rules = []
    for layer, formats in _wanted(choice, sensitivity).items():
        rules.append(_rule({"glob" if _is_plain(layer) else "name": layer}, formats))
    return Recipe(rules)


def _rule(selector: Mapping[str, str], formats: RoleFormats) -> Rule:
    """Return the rule of what is selected, with a format for each role that has one."""
    roles = {role: text for role, text in zip(ROLES, formats, strict=True) if text is not None}
    fields: dict[str, Any] = {**selector, **roles}
    return Rule(**fields)


def _agrees(wanted: RoleFormats, current: RoleFormats) -> bool:
    return all(want is None or want == have for want, have in zip(wanted, current, strict=True))


def _common(choices: Iterable[RoleFormats]) -> RoleFormats:
    """Return the most frequent format of each role."""
    roles = zip(*choices, strict=True)
    counts = [Counter(text for text in texts if text is not None).most_common(1) for texts in roles]
    return tuple(count[0][0] if count else None for count in counts)


def _wanted(choice: Mapping[str, str], sensitivity: Sensitivity) -> dict[str, RoleFormats]:
    """Return the formats of each layer, including layers that are not quantized."""
    names = {group.name for group in sensitivity.groups}
    if names != set(choice):
        odd = sorted(names ^ set(choice))[0]
        raise ConfigError(
            f"an assignment names every group once; {odd!r} is {'missing' if odd in names else 'no group'}"
        )
    roles = [role for role in ROLES if any(group.role == role for group in sensitivity.groups)]
    stays = [KEEP if role in roles else None for role in ROLES]
    formats: dict[str, list[str | None]] = {}
    for group in sensitivity.groups:
        for layer in group.layers:
            formats.setdefault(layer, [None] * len(ROLES))[ROLES.index(group.role)] = choice[group.name]
    return {layer: tuple(texts) for layer, texts in (formats | dict.fromkeys(sensitivity.kept, stays)).items()}


def _families(layers: Iterable[str]) -> dict[str, list[str]]:
    """Return the layers of each pattern with ``*`` for numbers, then of one for the experts of a mixture.

    Patterns that match only one layer are left out.
    """
    known = list(layers)
    families: dict[str, list[str]] = {}
    patterns = [_NUMBER.sub("*", layer) for layer in known]
    patterns += [family for layer in known if (family := expert_family(layer)) is not None]
    for pattern in dict.fromkeys(patterns):
        if "*" not in pattern or any(_WILD.search(layer) for layer in known):
            continue
        selector = Selector("glob", pattern)
        matched = [layer for layer in known if selector.matches_path(layer)]
        if len(matched) > 1:
            families[pattern] = matched
    return families


def _is_plain(layer: str) -> bool:
    return bool(layer) and not _WILD.search(layer)
