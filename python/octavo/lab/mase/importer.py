"""MASE's quantization dictionaries as recipes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from octavo.errors import FormatError
from octavo.lab.mase.layer_settings import Settings, read_format
from octavo.recipe import Recipe, Rule
from octavo.recipe.rule import KEEP
from octavo.recipe.sites import model_sites
from octavo.tensors.formats import Format

_ROLES = {"data_in": "input", "weight": "weight", "bias": "bias", "data_out": "output"}
_TYPES = {"linear": "Linear", "conv1d": "Conv1d", "conv2d": "Conv2d"}
# What MASE quantizes besides, and no layer of a recipe is.
_FUNCTIONS = (
    "add", "bmm", "matmul", "mul", "sub", "relu", "selu", "tanh", "gelu", "softsign", "softplus", "batch_norm2d",
    "layer_norm", "group_norm", "instance_norm2d", "rms_norm", "rotary_positional_encoding", "grouped_query_attention",
)  # fmt: skip
_NOTHING = (None, "None", "none", "NA")


@dataclass(frozen=True)
class Imported:
    """A recipe, and ``notes``: what was left out, and where MASE's own result differs or is wrong."""

    recipe: Recipe
    notes: tuple[str, ...]


def recipe(config: Mapping[str, Any], model: nn.Module | None = None) -> Imported:
    """Return the recipe of a dictionary for MASE's quantize pass, which is not changed.

    ``config``: ``{"by": "type" | "name" | "regex_name", "default": {"config": {"name": None}}, "linear": {"config":
    {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, ...}}}``; None, "NA" and ``bypass`` keep a layer.
    ``model``: resolves MASE's graph names (``encoder_layer_0``) to paths, and leaves out, with a note, entries for
    what the model does not have; without it names are taken as paths, and such entries are errors of ``plan``.

    A format keeps its widths and is Octavo's, so that values may differ from MASE's as the notes say. Raises
    FormatError for a selection, scheme or setting that has no meaning here. Source: MASE ``quantize_transform_pass``.
    """
    if not isinstance(config, Mapping) or "by" not in config:
        raise FormatError("a MASE configuration is a dictionary with the key 'by': type, name or regex_name")
    by = config["by"]
    if by not in ("type", "name", "regex_name"):
        raise FormatError(f"by is {by!r}; accepted are type, name and regex_name")
    reader = _Reader(model)
    entries = [(key, value) for key, value in config.items() if key not in ("by", "default")]
    reader.default(config.get("default", {"config": {"name": None}}))
    if by == "regex_name" and len(entries) > 1:
        reader.note("regex_name", "MASE lets the first pattern that matches decide; the rules are in reverse order")
        entries.reverse()
    for key, value in entries:
        getattr(reader, by)(key, value)
    return Imported(Recipe(reader.rules), tuple(dict.fromkeys(reader.notes)))


class _Reader:
    """Rules and notes, entry by entry."""

    def __init__(self, model: nn.Module | None) -> None:
        self.rules: list[Rule] = []
        self.notes: list[str] = []
        self.given: set[str] = set()  # roles that some rule before gives a format
        sites = [] if model is None else [site for site in model_sites(model) if site.problem is None]
        self.paths = None if model is None else list(dict.fromkeys(site.module for site in sites))
        self.classes = {name for site in sites for name in site.classes}

    def note(self, where: str, text: str) -> None:
        """Take a note."""
        self.notes.append(f"{where}: {text}")

    def default(self, entry: Any) -> None:
        """Read what holds for all that no entry names."""
        gives = self._read("default", entry)
        if gives:
            self.note("default", "the default selection holds embeddings, too, which MASE leaves as they are")
            self._note_convolutions("default")
            self._add(gives)

    def type(self, name: str, entry: Any) -> None:
        """Read an entry for an operation."""
        if name in _FUNCTIONS:
            self.note(name, "left out: rules reach layers with weights, and modules that declare quant_roles")
            return
        if name not in _TYPES:
            near = difflib.get_close_matches(name, [*_TYPES, *_FUNCTIONS], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; layers are {', '.join(_TYPES)}"
            raise FormatError(f"unknown type {name!r}{hint}")
        gives = self._read(name, entry)
        if self.paths is not None and _TYPES[name] not in self.classes:
            self.note(name, "left out: the model has none")
            return
        if name != "linear":
            self._note_convolutions(name)
        self._add(gives, type=_TYPES[name])

    def name(self, name: str, entry: Any) -> None:
        """Read an entry for one layer."""
        gives = self._read(name, entry)
        if self.paths is None:
            if "_" in name and "." not in name:
                self.note(name, "taken as a path; names of MASE's graph have _ for the dots, and model= resolves them")
            self._add(gives, name=name)
            return
        for path in self._resolve(name, lambda text: text == name):
            self._add(gives, name=path)

    def regex_name(self, pattern: str, entry: Any) -> None:
        """Read an entry for the layers whose name a pattern matches."""
        gives = self._read(pattern, entry)
        rule = Rule(regex=pattern, keep=True)  # refuses what is no regular expression
        if self.paths is None or any(rule.selector.matches_path(path) for path in self.paths):
            self._add(gives, regex=pattern)
            return
        for path in self._resolve(pattern, lambda text: re.fullmatch(pattern, text) is not None):
            self._add(gives, name=path)

    def _resolve(self, what: str, matches: Any) -> list[str]:
        """Return the layers whose path or name in MASE's graph matches."""
        paths = self.paths or []
        found = [path for path in paths if matches(path)]
        found = found or [path for path in paths if matches(path.replace(".", "_"))]
        if not found:
            self.note(what, "left out: no layer has this name, which MASE would not have said")
        return found

    def _note_convolutions(self, where: str) -> None:
        self.note(where, "MASE's quantized convolutions lose their bias; here it stays")

    def _add(self, gives: dict[str, Format | str], **selector: str) -> None:
        """Add a rule. An entry of MASE decides about all roles, so those it does not name are kept."""
        kept = {role: KEEP for role in self.given if role not in gives}
        if gives or kept:
            arguments: dict[str, Any] = {**selector, **gives, **kept}
            self.rules.append(Rule(**arguments))
        self.given.update(gives)

    def _read(self, where: str, entry: Any) -> dict[str, Format | str]:
        """Return the format of each role that an entry gives."""
        config = entry.get("config") if isinstance(entry, Mapping) else None
        if not isinstance(config, Mapping):
            raise FormatError(f"{where}: an entry is {{'config': {{'name': ...}}}}, got {entry!r}")
        name = config.get("name")
        if name in _NOTHING or config.get("bypass"):
            return {}
        if name == "integer" and config.get("floor"):
            name = "integer_floor"
        gives: dict[str, Format | str] = {}
        trains, told = bool(config.get("binary_training", True)), False
        used = {"name", "bypass", "floor"} | ({"binary_training"} if str(name).startswith("binary_") else set())
        for prefix, role in _ROLES.items():
            values = {key.removeprefix(f"{prefix}_"): config[key] for key in config if key.startswith(f"{prefix}_")}
            if values and any(value not in _NOTHING for value in values.values()):
                settings, told = Settings(f"{where}: {prefix}", values, trains), True
                if (found := read_format(name, settings)) is not None:
                    gives[role] = found
                used |= {f"{prefix}_{key}" for key in settings.used}
                for text in settings.notes:
                    self.note(where, text)
        for key in config:
            if key not in used and config[key] not in _NOTHING:
                self.note(where, f"left out: the key {key!r} has no meaning for {name!r}")
        if not told:
            raise FormatError(f"{where}: {name!r} without settings; keys begin with {', '.join(_ROLES)}")
        return gives
