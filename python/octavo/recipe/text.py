"""The short text of a recipe, read and written.

    recipe   := rule { ";" rule }
    rule     := [ selector ] given { given }
    given    := [ ROLE "=" ] ( FORMAT [ "@" CHOICE ] | "keep" )
    selector := [ "first:" | "last:" ] ( "type:" CLASS | "name:" PATH | "glob:" GLOB | "regex:" EXPRESSION )

A selector without a kind is a glob, after ``first:`` and ``last:`` a type. A format without a role is of the weight (of
the bias where the path ends in ``.bias``); ``keep`` without a role is of all roles. The space after a selector may be a
``=``: ``embed*=mxint8``. What holds a space, ``;``, ``=`` or ``"`` is written in double quotes, a quote in it twice.
"""

from __future__ import annotations

import re
from typing import Any

from octavo.errors import FormatError
from octavo.recipe.rule import KEEP, Rule, is_given, read_spec
from octavo.recipe.selectors import KINDS, PICKS, Selector
from octavo.recipe.spec import ROLES
from octavo.storage.arguments import checks_arguments

# Runs of anything but the separators, quoted parts included.
_RULES = re.compile(r'(?:[^;"]|"[^"]*")*')
_WORDS = re.compile(r'(?:[^\s"]|"[^"]*")+')


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Read the rules of a text. Raises FormatError naming the rule that is wrong."""
    if not isinstance(text, str):
        raise FormatError(f"a recipe is a text such as 'int4:g32; last:Linear keep', got {type(text).__name__}")
    if not text.strip():
        return ()
    rules, place = [], 0
    while place <= len(text):
        match = _RULES.match(text, place)
        end = match.end() if match else place
        if end < len(text) and text[end] == '"':
            raise FormatError(f"recipe {text!r}: a quote is not closed")
        rules.append(_parse_rule(text, text[place:end].strip()))
        place = end + 1
    return tuple(rules)


@checks_arguments
def parse_selector(text: str) -> Selector:
    """Read a selector alone, such as ``last:Linear`` or ``encoder.*.query``.

    Args:
        text: the selector.

    Returns:
        The selector.

    Raises:
        FormatError: for a text that cannot be read.
    """
    options = _read_selector(text.strip())
    pick = options.pop("pick", None)
    kind, pattern = next(iter(options.items()))
    return Selector(kind, pattern, pick)


def _parse_rule(text: str, part: str) -> Rule:
    words = _WORDS.findall(part)
    if not words:
        raise FormatError(f"recipe {text!r}: an empty rule; each is [SELECTOR] [ROLE=]FORMAT[@CALIBRATION] ...")
    try:
        selector, words = _split(words)
        arguments: dict[str, Any] = {**selector, **_read_given(words, selector)}
        return Rule(**arguments)
    except FormatError as error:
        hint = "; rules are separated by ';'" if "," in part else ""
        raise FormatError(f"recipe {text!r}: {error}{hint}") from None


def _split(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the selector that the first word is, if it is one, and what is given."""
    first, rest = words[0], words[1:]
    left, equals, right = _partition(first)
    if equals and left not in ROLES:
        if not left or not right:
            raise FormatError(f"{first!r} is not GLOB=FORMAT, GLOB=keep or FORMAT")
        return _read_selector(left), [right, *rest]
    if equals or not rest or is_given(first):
        return {}, words
    return _read_selector(first), rest


def _partition(word: str) -> tuple[str, str, str]:
    """Split a word at the last ``=`` that is not in quotes."""
    quoted = False
    for place in range(len(word) - 1, -1, -1):
        if word[place] == '"':
            quoted = not quoted
        elif word[place] == "=" and not quoted:
            return word[:place], "=", word[place + 1 :]
    return word, "", ""


def _read_selector(word: str) -> dict[str, str]:
    """Return the arguments of a rule that a selector stands for."""
    head, colon, rest = word.partition(":")
    pick = {"pick": head} if colon and head in PICKS else {}
    default = "glob"
    if pick:
        word, default = rest, "type"
        head, colon, rest = word.partition(":")
    if colon and head in KINDS:
        return {head: _unquote(rest), **pick}
    return {default: _unquote(word), **pick}


def _unquote(text: str) -> str:
    if not text.startswith('"'):
        return text
    if len(text) < 2 or not text.endswith('"'):
        raise FormatError(f"{text} is quoted in part; quote the whole of it")
    return text[1:-1].replace('""', '"')


def _read_given(words: list[str], selector: dict[str, str]) -> dict[str, str | bool]:
    if words == [KEEP]:
        return {"keep": True}
    formats: dict[str, str | bool] = {}
    path = selector.get("name") or selector.get("glob") or selector.get("regex") or ""
    for word in words:
        role, equals, value = word.partition("=")
        if not equals:
            role, value = "bias" if re.search(r"(^|\.)bias$", path) else "weight", word
        if role not in ROLES:
            raise FormatError(f"unknown role {role!r}; accepted are {', '.join(ROLES)}")
        if role in formats:
            raise FormatError(f"{role} is given twice: {formats[role]!r} and {value!r}")
        read_spec(value)  # here, so that the error comes first where a later word is wrong, too
        formats[role] = value
    return formats
