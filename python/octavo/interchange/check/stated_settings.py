"""What configurations say about quantisation: method, widths, groups, and layers that stay float."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import ContainerError
from octavo.interchange.check.source import Source
from octavo.storage.reading import shown

_MOST_NAME, _MOST_PATTERN, _MOST_REPEATS = 256, 512, 4
_SLOW_S, _MOST_SLOW_S = 0.01, 3.0  # seconds of one match, and of all slow ones
# Methods whose lists name parts of paths.
_BY_PART = ("bitsandbytes", "awq", "gptq", "fp8", "mxfp4")
# A repeated group takes exponential time on some names.
_NESTED = re.compile(r"\)[*+{]")
_REPEAT = re.compile(r"(?<!\\)[*+]|\{\d+,\d*\}")
_OPTIONAL = re.compile(r"(?<![\\(*+])\?")


@dataclass(frozen=True)
class Group:
    """A group of layers with the same settings: ``targets`` name its layers, ``weights`` are the settings."""

    name: str
    targets: tuple[str, ...]
    weights: Mapping[str, Any]
    format: str


@dataclass
class Settings:
    """The quantisation of a checkpoint as its configurations state it.

    ``method``: such as ``gptq``; empty where none is stated. ``file``, ``keys``: where the table stands. ``ignored``:
    layers that are stated to be float: names, patterns and globs.
    """

    method: str = ""
    file: str = ""
    keys: tuple[str, ...] = ()
    table: Mapping[str, Any] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    _names: set[str] | None = field(default=None, repr=False)
    _patterns: list[str] = field(default_factory=list, repr=False)
    _compiled: dict[str, re.Pattern[str] | None] = field(default_factory=dict, repr=False)
    _slow: float = field(default=0.0, repr=False)

    @classmethod
    def of(cls, source: Source) -> Settings:
        """Read them. Raises ContainerError for values of another kind."""
        table = source.config.get("quantization_config")
        if table is None:
            nested = source.config.get("text_config")
            table = nested.get("quantization_config") if isinstance(nested, dict) else None
            if table is not None:
                return cls._made(source, "config.json", ("text_config", "quantization_config"), table)
        if table is not None:
            return cls._made(source, "config.json", ("quantization_config",), table)
        for name in ("quantize_config.json", "quant_config.json"):
            if name in source.configs:
                settings = cls._made(source, name, (), source.configs[name])
                settings.method = settings.method or ("awq" if "w_bit" in settings.table else "gptq")
                return settings
        if "hf_quant_config.json" in source.configs:
            return cls._made(source, "hf_quant_config.json", (), source.configs["hf_quant_config.json"])
        return cls()

    @classmethod
    def _made(cls, source: Source, file: str, keys: tuple[str, ...], table: object) -> Settings:
        label = f"{source.folder / file}: {'.'.join(keys) or 'the table'}"
        if not isinstance(table, dict):
            raise ContainerError(f"{label} is {shown(table)}; accepted is an object")
        settings = cls(file=file, keys=keys, table=table)
        settings.method = _text(table, "quant_method", label).lower()
        if file == "hf_quant_config.json" or settings.method == "modelopt":
            settings.method = "modelopt"
        settings.ignored = [
            *_texts(table, "ignore", label),
            *_texts(table, "modules_to_not_convert", label),
            *_texts(table, "llm_int8_skip_modules", label),
            *_texts(table, "exclude_modules", label),
        ]
        inner = table.get("quantization")
        if isinstance(inner, dict):  # ModelOpt
            settings.ignored += _texts(inner, "exclude_modules", label)
            settings.table = inner | {"producer": table.get("producer")}
        groups = table.get("config_groups") or {}
        if not isinstance(groups, dict):
            raise ContainerError(f"{label}: config_groups is {shown(groups)}; accepted is an object")
        for name, group in groups.items():
            place = f"{label}: {shown(name)}"
            if not isinstance(group, dict):
                raise ContainerError(f"{place} is {shown(group)}; accepted is an object")
            weights = group.get("weights") or {}
            if not isinstance(weights, dict):
                raise ContainerError(f"{place}: weights is {shown(weights)}; accepted is an object")
            targets = tuple(_texts(group, "targets", place))
            settings.groups.append(
                Group(name, targets, weights, _text(group, "format", place) or _text(table, "format", label))
            )
        return settings

    def whole(self, *names: str, of: Mapping[str, Any] | None = None) -> int | None:
        """Return the first of the named numbers that is stated; None where none is. Raises ContainerError."""
        table = self.table if of is None else of
        for name in names:
            value = table.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 1 << 31:
                raise ContainerError(f"{self.file}: {name} is {shown(value)}; accepted is a whole number")
            return value
        return None

    def flag(self, name: str) -> bool | None:
        """Return a stated boolean; None where none is."""
        value = self.table.get(name)
        return value if isinstance(value, bool) else None

    def group_of(self, layer: str) -> Group | None:
        """Return the group of a layer by its name; ``Linear`` stands for all layers."""
        named = [group for group in self.groups if any(self.matches(one, layer) for one in group.targets)]
        if named:
            return named[0]
        return next((group for group in self.groups if "Linear" in group.targets), None)

    def ignores(self, layer: str) -> bool:
        """Whether a layer is stated to be float."""
        if self._names is None:
            self._names = {one for one in self.ignored if not _is_pattern(one)}
            self._patterns = [one for one in self.ignored if self.method in _BY_PART or _is_pattern(one)]
        parts = layer.split(".")
        if any(".".join(parts[:length]) in self._names for length in range(1, len(parts) + 1)):
            return True
        return any(self.matches(one, layer) for one in self._patterns)

    def matches(self, pattern: str, layer: str) -> bool:
        """Whether a name, a pattern ``re:...`` or a glob stands for a layer, or for a module above it.

        Patterns that could take exponential time are not tried; :attr:`unreadable` lists them. Raises ContainerError
        where patterns take seconds.
        """
        if _is_pattern(pattern):
            return self._searched(pattern, layer)
        is_above = layer == pattern or layer.startswith(f"{pattern}.")
        return is_above or (self.method in _BY_PART and pattern in layer)

    def _searched(self, pattern: str, layer: str) -> bool:
        if pattern not in self._compiled:
            self._compiled[pattern] = _compiled(pattern)
            if self._compiled[pattern] is None:
                self.unreadable.append(pattern)
        expression = self._compiled[pattern]
        if expression is None or len(layer) > _MOST_NAME:
            return False
        started = time.perf_counter()
        matched = expression.match(layer) is not None
        seconds = time.perf_counter() - started
        self._slow += seconds if seconds > _SLOW_S else 0
        if self._slow > _MOST_SLOW_S:
            raise ContainerError(
                f"{self.file}: trying {shown(pattern)} and others lasts seconds; accepted are simple patterns"
            )
        return matched


def _is_pattern(text: str) -> bool:
    return text.startswith("re:") or "*" in text


def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Return the expression of a pattern or glob; None for an invalid one, and one that may take exponential time."""
    if pattern.startswith("re:"):
        text = pattern[3:]
    else:
        text = ".*".join(re.escape(part) for part in re.split(r"\*+", pattern)) + r"(?:\..*)?$"
    repeats, optional = len(_REPEAT.findall(text)), len(_OPTIONAL.findall(text))
    if len(text) > _MOST_PATTERN or repeats > _MOST_REPEATS or optional > 2 * _MOST_REPEATS or _NESTED.search(text):
        return None
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return None


def _text(table: Mapping[str, Any], key: str, label: str) -> str:
    value = table.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ContainerError(f"{label}: {key} is {shown(value)}; accepted is a text")
    return value


def _texts(table: Mapping[str, Any], key: str, label: str) -> list[str]:
    value = table.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ContainerError(f"{label}: {key} is {shown(value)}; accepted is a list of texts")
    return value
