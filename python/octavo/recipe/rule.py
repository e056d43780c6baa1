"""One rule of a recipe: a selector, and what it gives to each role."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from octavo.errors import FormatError
from octavo.recipe.fit import misfit
from octavo.recipe.selectors import KINDS, PICKS, Selector
from octavo.recipe.spec import BLOCK_RULES, INT32, ROLES, Calibration, Spec
from octavo.storage.reading import shown
from octavo.tensors.formats import Format

KEEP = "keep"
RULE_KEYS = (*KINDS, "pick", *ROLES, "keep")

Given = Spec | Format | str | None
_SPECIAL = re.compile(r'[\s;="]')  # characters of a path that is quoted


@dataclass(frozen=True, init=False)
class Rule:
    """One rule: which layers, and the format of each of their tensors.

    At most one of ``type``, ``name``, ``glob`` and ``regex`` selects layers; without one, the default selection does.
    Formats are ``FORMAT``, ``FORMAT@CALIBRATION``, ``FORMAT@RULE`` of block scales, a Format or a Spec; ``"keep"``
    leaves the tensor as it is. The grammar is in :mod:`octavo.recipe.text`.

    Args:
        type: name of a class, such as ``Linear``; subclasses match.
        name: path of one layer.
        glob: pattern of paths; ``*`` stays inside a part, ``**`` crosses dots.
        regex: regular expression of whole paths.
        pick: ``first`` or ``last`` of the layers that match.
        weight: format of the weight.
        input: format of the input.
        output: format of the output.
        bias: format of the bias.
        keep: leave all tensors of the layers as they are.

    Raises:
        FormatError: for a text that cannot be read, several selectors, and a rule that gives nothing.

    Example:
        >>> rule = octavo.Rule(type="Linear", weight="int4:g32@gptq", input="int8@quantile:0.999")
        >>> print(rule)
        type:Linear weight=int4:g32@gptq input=int8@quantile:0.999
        >>> octavo.Rule(glob="head", weight="int4", keep=True)
        Traceback (most recent call last):
        octavo.errors.FormatError: a rule keeps all tensors or gives formats, got keep and weight
    """

    selector: Selector
    gives: tuple[tuple[str, Spec | None], ...]  # roles in the order of ROLES; None: keep

    def __init__(
        self,
        *,
        type: str | None = None,
        name: str | None = None,
        glob: str | None = None,
        regex: str | None = None,
        pick: str | None = None,
        weight: Given = None,
        input: Given = None,
        output: Given = None,
        bias: Given = None,
        keep: bool = False,
    ) -> None:
        """Read the selector and the formats."""
        patterns = {kind: text for kind, text in zip(KINDS, (type, name, glob, regex), strict=True) if text is not None}
        if len(patterns) > 1:
            raise FormatError(f"a rule has one selector, got {' and '.join(patterns)}")
        kind, pattern = next(iter(patterns.items()), (None, ""))
        selector = Selector(kind, pattern, pick)
        formats = {
            role: value for role, value in zip(ROLES, (weight, input, output, bias), strict=True) if value is not None
        }
        if not isinstance(keep, bool):
            raise FormatError(f"keep is {shown(keep)}; accepted are true and false")
        if keep and formats:
            raise FormatError(f"a rule keeps all tensors or gives formats, got keep and {', '.join(formats)}")
        if keep:
            formats = dict.fromkeys(ROLES, KEEP)
        if not formats:
            raise FormatError(f"a rule gives formats to {', '.join(ROLES)}, or keep=True; this one gives nothing")
        gives = tuple((role, read_spec(value)) for role, value in formats.items())
        for role, spec in gives:
            if spec is not None and (problem := misfit(role, spec)):
                raise FormatError(f"{role}={spec}: {problem}")
        object.__setattr__(self, "selector", selector)
        object.__setattr__(self, "gives", gives)

    @property
    def keeps_all(self) -> bool:
        """True for a rule that leaves every tensor of its layers as it is."""
        return len(self.gives) == len(ROLES) and all(spec is None for _, spec in self.gives)

    def as_dict(self) -> dict[str, Any]:
        """Return the arguments that make this rule, as texts.

        Returns:
            A dictionary; ``Rule(**rule.as_dict()) == rule``.

        Example:
            >>> octavo.Rule(glob="encoder.**", weight=octavo.Format("int8")).as_dict()
            {'glob': 'encoder.**', 'weight': 'int8'}
        """
        selector = {self.selector.kind: self.selector.pattern} if self.selector.kind else {}
        pick = {"pick": self.selector.pick} if self.selector.pick else {}
        gives = {"keep": True} if self.keeps_all else {role: spec_text(spec) for role, spec in self.gives}
        return {**selector, **pick, **gives}

    def __str__(self) -> str:
        """Return the rule as the short text has it."""
        return _write(self)

    def __repr__(self) -> str:
        """Return the call that makes this rule."""
        return f"Rule({', '.join(f'{key}={value!r}' for key, value in self.as_dict().items())})"


def read_spec(value: Given) -> Spec | None:
    """Read ``FORMAT[@CALIBRATION]`` or ``keep``, which is None. Raises FormatError naming the part that is wrong."""
    if isinstance(value, Spec):
        return value
    if isinstance(value, Format):
        return Spec(value)
    if not isinstance(value, str):
        raise FormatError(f"a format is a text such as 'int8@mse', got {shown(value)}")
    text = value.strip()
    if text == KEEP:
        return None
    name, at, choice = (part.strip() for part in text.partition("@"))
    fmt = INT32 if name == str(INT32) else Format(name)
    if not at:
        return Spec(fmt)
    method, colon, argument = choice.partition(":")
    if method in BLOCK_RULES and not colon and (fmt.is_block or method != "mse"):  # mse is a calibration, too
        if not fmt.is_block:
            raise FormatError(f"{text!r}: '{fmt}' has no block scale for the rule {method!r} to choose")
        return Spec(fmt, scale=method)
    try:
        return Spec(fmt, Calibration(method, float(argument) if colon else None))
    except ValueError as error:  # FormatError among them
        problem = error if isinstance(error, FormatError) else f"{argument!r} is not a number"
        raise FormatError(f"{text!r}: {problem}") from None


def spec_text(spec: Spec | None) -> str:
    """Return the text that :func:`read_spec` reads."""
    return KEEP if spec is None else str(spec)


def is_given(word: str) -> bool:
    """Whether a word is a format, with or without a calibration, or ``keep``."""
    try:
        read_spec(word)
    except FormatError:
        return False
    return True


def _write(rule: Rule) -> str:
    """Return the text that :func:`octavo.recipe.text.parse_rules` reads as ``rule``."""
    selector = _write_selector(rule)
    if rule.keeps_all:
        formats = KEEP
    elif (
        len(rule.gives) == 1 and rule.gives[0][0] == "weight" and rule.gives[0][1] is not None and not _names_bias(rule)
    ):
        formats = spec_text(rule.gives[0][1])
    else:
        formats = " ".join(f"{role}={spec_text(spec)}" for role, spec in rule.gives)
    return f"{selector} {formats}" if selector else formats


def _names_bias(rule: Rule) -> bool:
    return rule.selector.is_path and re.search(r"(^|\.)bias$", rule.selector.pattern) is not None


def _write_selector(rule: Rule) -> str:
    selector = rule.selector
    if selector.kind is None:
        return ""
    pattern = selector.pattern
    quoted = '"' + pattern.replace('"', '""') + '"' if _SPECIAL.search(pattern) else pattern
    bare = {"glob": not selector.pick, "type": bool(selector.pick), "name": False, "regex": False}[selector.kind]
    if bare and selector.kind == "glob":
        head = pattern.partition(":")[0]
        bare = head not in (*KINDS, *PICKS, *ROLES) and not is_given(pattern)
    pick = f"{selector.pick}:" if selector.pick else ""
    return f"{pick}{quoted}" if bare else f"{pick}{selector.kind}:{quoted}"
