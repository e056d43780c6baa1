"""The TOML form of recipes and pipelines: one ``[[rules]]`` table a rule, one ``[[passes]]`` table a pass."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from octavo.errors import FormatError, OctavoError

# A key of many parts: tomllib takes memory in the square of their number, 3 GB for 60 kB.
_PARTS = 32
_STRING = re.compile(r"""\"(?:[^"\\\n]++|\\.)*+\"?|'[^'\n]*+'?""")  # also where it does not end: linear
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read_toml(
    text: str, label: str = "recipe", key: str = "rules", *, error: type[OctavoError] = FormatError
) -> dict[str, Any]:
    """Return the dictionary of a TOML text, of one without tables ``{key: []}``.

    ``label``: its name in messages. Raises ``error`` with the place where it is no TOML.
    """
    if not isinstance(text, str):
        raise error(f"TOML is a text, or the path of a file as a Path, got {type(text).__name__}")
    # Strings over several lines would hide keys from the pattern of strings; then dots in strings count, too.
    bare = text if '"""' in text or "'''" in text else _STRING.sub("", text)
    if any(line.count(".") > _PARTS for line in bare.split("\n")):
        raise error(f"{label}: not TOML of a {label}: a key of more than {_PARTS} parts")
    try:
        return tomllib.loads(text) or {key: []}
    except (ValueError, RecursionError) as wrong:  # of TOML that is wrong, of numbers and nesting without end
        raise error(f"{label}: not TOML: {wrong}") from None


def write_toml(key: str, tables: Iterable[Mapping[str, Any]]) -> str:
    """Return the TOML text of ``{key: [...]}``; values are texts, numbers, booleans, and lists and mappings of them."""
    blocks = []
    for table in tables:
        lines = [f"{_key(name)} = {_value(value)}" for name, value in table.items()]
        blocks.append("\n".join([f"[[{key}]]", *lines, ""]))
    return "\n".join(blocks)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)  # inf and nan are TOML, too
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    # A JSON string is a basic string of TOML, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
