"""Arms of the bench: presets by name, with fields that differ, and the budgets that they run on."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from octavo.errors import SettingError
from octavo.lab.language.language_config import LanguageConfig, Rule
from octavo.lab.language.language_presets import BASE, preset
from octavo.lab.language.language_scales import Scale

_NUMBERS = ("learning_rate", "weight_decay", "muon", "embedding", "head", "scalars", "warmup", "cooldown", "clip")
_CHANGES = (*_NUMBERS, "batch", "micro_tokens", "precision")
_BUDGET = re.compile(r"(\d*\.?\d*)(tokens|time)")


@dataclass(frozen=True)
class Budget:
    """``share`` of the scale's tokens, or, for the kind ``time``, of the seconds that the baseline trains for."""

    kind: str
    share: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``tokens``, ``time``, ``0.5time``. Raises SettingError for anything else."""
        found = _BUDGET.fullmatch(text.strip())
        share = 1.0 if found is None or not found[1] else float(found[1] if found[1] != "." else 0)
        if found is None or not 0 < share <= 100:
            raise SettingError(f"budget is {text!r}; accepted are tokens, time, and parts of them such as 0.5time")
        return cls(found[2], share)

    def __str__(self) -> str:
        """Return the text that it is parsed from."""
        return self.kind if self.share == 1 else f"{self.share:g}{self.kind}"


def arm(text: str, scale: Scale) -> LanguageConfig:
    """Return the run of an arm: ``NAME``, or ``NAME@FIELD=VALUE,...`` with fields that differ from the preset.

    ``NAME+NAME`` has what each of the presets changes in the baseline; two that change the same field are refused.
    Fields: those of the optimizer, ``warmup``, ``cooldown``, ``clip``, ``batch`` (sequences of an update),
    ``micro_tokens`` (of one forward pass at most), and ``precision``. Raises SettingError naming the field and what is
    accepted.
    """
    name, _, changes = text.partition("@")
    config = preset(BASE, scale)
    taken: list[str] = []
    for one in name.split("+"):
        config = _joined(preset(BASE, scale), config, preset(one, scale), (" and ".join(taken), one))
        taken.append(repr(one))
    for change in filter(None, changes.split(",")):
        field, _, value = change.partition("=")
        if field not in _CHANGES:
            raise SettingError(f"{field!r} of arm {text!r} is no field; accepted are {', '.join(_CHANGES)}")
        config = _changed(config, text, field, value)
    return config


def arms(text: str) -> list[str]:
    """Split a list of arms: names with commas between, where ``,`` followed by a field goes on with the arm before."""
    found: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part and "@" not in part and found:
            found[-1] += f",{part}"
        else:
            found.append(part)
    if len(set(found)) != len(found):
        raise SettingError(f"arms are {text!r}; accepted is each once")
    return found if BASE in found else [BASE, *found]


def _joined(base: Any, config: Any, other: Any, names: tuple[str, str]) -> Any:
    """Return ``config`` with the fields in which ``other`` differs from ``base``, inside a model one by one."""
    changes: dict[str, Any] = {}
    for field in fields(base):
        old, now, new = (getattr(one, field.name) for one in (base, config, other))
        if new in (old, now):
            continue
        if now == old:
            changes[field.name] = new
        elif is_dataclass(old) and type(old) is type(now) is type(new) and field.name != "optimizer":
            changes[field.name] = _joined(old, now, new, names)
        else:
            raise SettingError(
                f"{names[0]} and {names[1]!r} both change {field.name}; accepted together is one of them"
            )
    return replace(config, **changes) if changes else config


def _changed(config: LanguageConfig, arm: str, field: str, value: str) -> LanguageConfig:
    if field == "precision":
        return replace(config, precision=value)
    try:
        number = float(value)
    except ValueError:
        raise SettingError(f"{field} of arm {arm!r} is {value!r}; accepted is a number") from None
    if field in ("batch", "micro_tokens"):
        if not (number >= 1 and number.is_integer()):
            raise SettingError(f"{field} of arm {arm!r} is {value!r}; accepted are whole numbers of at least 1")
        if field == "micro_tokens":
            return replace(config, micro_tokens=int(number))
        return replace(config, phases=tuple(replace(phase, batch=int(number)) for phase in config.phases))
    if field in ("warmup", "cooldown", "clip"):
        changes: dict[str, Any] = {field: number}
        return replace(config, **changes)
    rule: Rule = config.optimizer
    if not hasattr(rule, field):
        raise SettingError(f"{field} of arm {arm!r}: {type(rule).__name__} has none")
    of_rule: dict[str, Any] = {field: number}
    return replace(config, optimizer=replace(rule, **of_rule))
