"""The factor by which an untrusted tokenizer may lengthen a text: by replacing, prepending and repeating."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from octavo.errors import ContainerError
from octavo.storage.reading import shown

# Times that a text may grow in all steps together, and characters that one of them may become: real tokenizers write
# "▁" for a space, and the ligature of a phrase of 18 characters in full.
GROWTH, ONE = 4096, 256


def check_growth(values: Mapping[str, Any], file: Path) -> None:
    """Refuse a ``tokenizer.json`` whose steps make a text longer and longer: ten steps of ten take all memory.

    Raises ContainerError naming the step.
    """
    growth = 1
    for where, step in _steps(values, ""):
        kind = step.get("type")
        if kind == "Replace":
            growth *= max(1, _length(step.get("content")))
        elif kind == "Prepend":
            growth += _length(step.get("prepend"))
        elif kind == "Precompiled" and _longest(step.get("precompiled_charsmap")) > ONE:
            raise ContainerError(f"{file}: {where} turns a character into more than {ONE}; take it out")
        elif kind == "TemplateProcessing":
            growth *= max(1, *(len(step[name]) for name in ("single", "pair") if isinstance(step.get(name), list)), 1)
        if growth > GROWTH:
            raise ContainerError(
                f"{file}: up to {where}, {shown(kind)}, a text grows more than {GROWTH} times; take the step out"
            )


def _steps(value: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give every object with a type, but those of the vocabulary."""
    if isinstance(value, Mapping):
        if isinstance(value.get("type"), str):
            yield where or "tokenizer", value
        for key, item in value.items():
            if key not in ("vocab", "merges", "added_tokens"):
                yield from _steps(item, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _steps(item, f"{where}.{number}")


def _length(text: Any) -> int:
    return len(text) if isinstance(text, str) else 0


def _longest(charsmap: Any) -> int:
    """Return the length of the longest text in a map of sentencepiece: a size, a trie of it, texts that end in NUL."""
    if not isinstance(charsmap, str):
        return 0
    try:
        data = base64.b64decode(charsmap, validate=True)
    except (binascii.Error, ValueError):
        return 0  # no tokenizer takes it
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max(map(len, texts.split(b"\0")))
