"""Fields of a run by name: any of them set from a text, as ``context=2048`` or ``mixer.window=64``."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

from octavo.errors import SettingError
from octavo.lab.language.language_config import LanguageConfig
from octavo.lab.language.language_scales import Scale

SIZES = ("context", "width", "layers")
"""Fields of the sizes, which a preset is made at; the others are set in the run that it makes."""

_RUN = (
    "micro_tokens", "schedule", "warmup", "cooldown", "final", "clip", "precision", "validations", "order",
    "reallocations", "attention",
)  # fmt: skip
_MODEL = ("keep_documents",)
_STAGE = ("batch", "window", "rate", "noise")
_OPTIONS = {
    "tokens": "--tokens", "validation_tokens": "--validation-tokens", "vocabulary": "--vocabulary of train gpt",
    "compile": "--compile", "until": "--until", "device": "--device", "seed": "--seed or --seeds",
}  # fmt: skip


def accepted(config: LanguageConfig) -> list[str]:
    """Return the names of the fields of a run, sorted; ``GROUP.FIELD`` where two groups have a field of one name."""
    groups = _groups(config)
    names = [name for members in groups.values() for name in members]
    single = {name for name in names if names.count(name) == 1}
    qualified = [name if name in single else f"{group}.{name}" for group, members in groups.items() for name in members]
    return sorted([*SIZES, *qualified])


def resized(scale: Scale, name: str, text: str) -> Scale:
    """Return the sizes with another ``context``, ``width`` or number of ``layers``.

    Updates keep their tokens when the context changes: they have fewer or more sequences, one at least. Raises
    SettingError for what is no whole number of at least 2 (layers: 1).
    """
    value = parsed(text, int, name)
    least = 1 if name == "layers" else 2
    if value < least:
        raise SettingError(f"{name} is {text!r}; accepted are whole numbers of at least {least}")
    if name == "context":
        return replace(scale, context=value, batch=max(1, scale.batch * scale.context // value))
    sizes: dict[str, Any] = {name: value}
    return replace(scale, **sizes)


def with_field(config: LanguageConfig, name: str, text: str) -> LanguageConfig:
    """Return the run with a field set from a text: a number, a word, ``true``, ``false``, ``none``, or ``0.8:0.95``.

    ``name``: of a field, or ``GROUP.FIELD`` with the group ``run``, ``stage`` (every stage), ``optimizer``, ``model``,
    ``mixer`` (every mixer that has it), ``ffn``, ``embedding``, ``head``, ``objective``, ``stream``, ``in_training``,
    ``reptile`` or ``test_time``. Raises SettingError for a name that is no field, with those that are, or that is one
    of several groups, and for a value of another type; errors of the part for a value that it refuses.
    """
    groups = _groups(config)
    group, _, field = name.rpartition(".")
    owners = [one for one, members in groups.items() if field in members and group in ("", one)]
    if not owners:
        if name in _OPTIONS:
            raise SettingError(f"{name} is no field to set; give {_OPTIONS[name]}")
        names = accepted(config)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SettingError(f"{name!r} is no field of this run; {hint}accepted are {', '.join(names)}")
    if len(owners) > 1:
        choices = " and ".join(f"{owner}.{field}" for owner in owners)
        raise SettingError(f"{field!r} is a field of {len(owners)} parts; accepted are {choices}")
    return _SET[owners[0]](config, owners[0], field, text)


def parsed(text: str, hint: Any, name: str) -> Any:
    """Return the value of a text for a field of type ``hint``. Raises SettingError naming the field and the type."""
    text = text.strip()
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [one for one in get_args(hint) if one is not type(None)]
        if len(kinds) < len(get_args(hint)) and text.lower() == "none":
            return None
        return parsed(text, kinds[0], name)
    if get_origin(hint) is tuple:
        kinds = list(get_args(hint))
        parts = text.split(":")
        if kinds[-1] is not Ellipsis and len(parts) != len(kinds):
            raise SettingError(f"{name} is {text!r}; accepted are {len(kinds)} values with : between")
        return tuple(parsed(part, kinds[0], name) for part in parts)
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise SettingError(f"{name} is {text!r}; accepted are true and false")
        return text.lower() == "true"
    if hint is str:
        return text
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if hint is int and not number.is_integer():
        raise SettingError(f"{name} is {text!r}; accepted is a whole number")
    if number != number or number in (float("inf"), float("-inf")):
        raise SettingError(f"{name} is {text!r}; accepted is a number")
    return int(number) if hint is int else number


def _groups(config: LanguageConfig) -> dict[str, Sequence[str]]:
    """Return the groups of a run and the fields of each."""
    model = config.model
    groups: dict[str, Sequence[str]] = {"run": _RUN, "stage": _STAGE, "model": _MODEL}
    groups["optimizer"] = _names(config.optimizer)
    groups["mixer"] = list(dict.fromkeys(name for _, mixer in model.mixers for name in _names(mixer)))
    for part in ("ffn", "embedding", "head", "objective", "stream", "in_training"):
        groups[part] = _names(getattr(model, part))
    for part in ("reptile", "test_time"):
        if getattr(config, part) is not None:
            groups[part] = _names(getattr(config, part))
    return groups


def _names(part: Any) -> list[str]:
    """Return the fields of a part that a text can set: those that are no parts themselves."""
    return [field.name for field in fields(part) if not is_dataclass(getattr(part, field.name))]


def _changed(part: Any, field: str, text: str) -> Any:
    return replace(part, **{field: parsed(text, get_type_hints(type(part))[field], field)})


def _in_run(config: LanguageConfig, group: str, field: str, text: str) -> LanguageConfig:
    changed: LanguageConfig = _changed(config, field, text)
    return changed


def _in_part(config: LanguageConfig, group: str, field: str, text: str) -> LanguageConfig:
    changes: dict[str, Any] = {group: _changed(getattr(config, group), field, text)}
    return replace(config, **changes)


def _in_stages(config: LanguageConfig, group: str, field: str, text: str) -> LanguageConfig:
    stages = tuple(_changed(phase, field, text) for phase in config.phases)
    if field == "batch" and stages[0].batch < 1:
        raise SettingError(f"batch is {text!r}; accepted are whole numbers of at least 1")
    return replace(config, phases=stages)


def _in_model(config: LanguageConfig, group: str, field: str, text: str) -> LanguageConfig:
    model = config.model
    if group == "model":
        return replace(config, model=_changed(model, field, text))
    if group == "mixer":
        mixers = {
            letter: _changed(mixer, field, text) if field in _names(mixer) else mixer for letter, mixer in model.mixers
        }
        return replace(config, model=replace(model, mixers=mixers))
    changes: dict[str, Any] = {group: _changed(getattr(model, group), field, text)}
    return replace(config, model=replace(model, **changes))


_SET: dict[str, Callable[[LanguageConfig, str, str, str], LanguageConfig]] = {
    "run": _in_run,
    "stage": _in_stages,
    **dict.fromkeys(("optimizer", "reptile", "test_time"), _in_part),
    **dict.fromkeys(("model", "mixer", "ffn", "embedding", "head", "objective", "stream", "in_training"), _in_model),
}
