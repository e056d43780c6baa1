"""The TOML form of a recipe: one ``[[rules]]`` table a rule, with the arguments of ``Rule`` as keys."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from octavo.errors import FormatError

# A key of many parts: tomllib takes memory in the square of their number, 3 GB for 60 kB.
_PARTS = 32
_STRING = re.compile(r"""\"(?:[^"\\\n]++|\\.)*+\"?|'[^'\n]*+'?""")  # also where it does not end: linear


def read_toml(text: str) -> dict[str, Any]:
    """Return the dictionary of a TOML text. Raises FormatError with the place where it is no TOML."""
    if not isinstance(text, str):
        raise FormatError(f"TOML is a text, or the path of a file as a Path, got {type(text).__name__}")
    # Strings over several lines would hide keys from the pattern of strings; then dots in strings count, too.
    bare = text if '"""' in text or "'''" in text else _STRING.sub("", text)
    if any(line.count(".") > _PARTS for line in bare.split("\n")):
        raise FormatError(f"recipe: not TOML of a recipe: a key of more than {_PARTS} parts")
    try:
        return tomllib.loads(text) or {"rules": []}
    except (ValueError, RecursionError) as error:  # of TOML that is wrong, of numbers and nesting without end
        raise FormatError(f"recipe: not TOML: {error}") from None


def write_toml(recipe: dict[str, Any]) -> str:
    """Return the TOML text of ``{"rules": [...]}``."""
    tables = []
    for rule in recipe["rules"]:
        lines = [f"{key} = {_value(value)}" for key, value in rule.items()]
        tables.append("\n".join(["[[rules]]", *lines, ""]))
    return "\n".join(tables)


def _value(value: str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # A JSON string is a basic string of TOML, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
