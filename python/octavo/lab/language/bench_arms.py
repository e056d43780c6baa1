"""Arms of the bench: presets by name, with fields that differ, and the budgets that they run on."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from octavo.errors import SettingError
from octavo.lab.language.attention_backend import check_attention
from octavo.lab.language.config_fields import SIZES, resized, with_field
from octavo.lab.language.gpt import GPT
from octavo.lab.language.gpt.sliding_window import check_sliding
from octavo.lab.language.joined_presets import joined
from octavo.lab.language.language_config import LanguageConfig
from octavo.lab.language.language_presets import BASE, preset
from octavo.lab.language.language_scales import Scale
from octavo.lab.language.language_task import check_objective

_BUDGET = re.compile(r"(\d*\.?\d*)(tokens|time)|(\d+\.?\d*|\.\d+)(h)")


@dataclass(frozen=True)
class Budget:
    """``share`` of the scale's tokens, or, for the kind ``time``, of the seconds that the baseline trains for.

    For the kind ``hours`` it is their number.
    """

    kind: str
    share: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``tokens``, ``time``, ``0.5time``, ``5.4h``. Raises SettingError for anything else."""
        found = _BUDGET.fullmatch(text.strip())
        if found is not None and found[4] and 0 < float(found[3]) <= 10000:
            return cls("hours", float(found[3]))
        share = 1.0 if found is None or found[4] or not found[1] else float(found[1] if found[1] != "." else 0)
        if found is None or found[4] or not 0 < share <= 100:
            raise SettingError(
                f"budget is {text!r}; accepted are tokens, time, parts of them such as 0.5time, and hours such as 5.4h"
            )
        return cls(found[2], share)

    def __str__(self) -> str:
        """Return the text that it is parsed from."""
        if self.kind == "hours":
            return f"{self.share:g}h"
        return self.kind if self.share == 1 else f"{self.share:g}{self.kind}"


def arm(text: str, scale: Scale) -> LanguageConfig:
    """Return the run of an arm: ``NAME``, or ``NAME@FIELD=VALUE,...`` with fields that differ from the preset.

    ``NAME+NAME`` has what each of the presets changes in the baseline; two that change the same field are refused, but
    for stages that change different fields, and for a mask of inputs, which becomes the noise of R-Drop. Fields: those
    of :mod:`octavo.lab.language.config_fields`, where ``context``, ``width`` and ``layers`` change the sizes that the
    presets are made at. Raises SettingError naming the field and what is accepted; errors of the parts for values.
    """
    name, at, rest = text.partition("@")
    changes = [_change(part) for part in rest.split(",")] if at else []
    for field, value in changes:
        if field in SIZES:
            scale = resized(scale, field, value)
    base = config = preset(BASE, scale)
    taken: list[str] = []
    for one in name.split("+"):
        config = joined(base, config, preset(one, scale), (" and ".join(taken), one))
        taken.append(repr(one))
    for field, value in changes:
        if field not in SIZES:
            config = with_field(config, field, value)
    return config


def _change(part: str) -> tuple[str, str]:
    field, equals, value = (one.strip() for one in part.partition("="))
    if not equals or not field or not value:
        raise SettingError(f"{part!r} sets no field; accepted is FIELD=VALUE, such as context=2048")
    return field, value


def check_run(config: LanguageConfig, *, device: str = "auto", sliding: int | None = None) -> None:
    """Build the parts of a run without memory for its weights, so that what does not fit is refused before work.

    ``device``: that it is to run on. ``sliding``: the stride of a validation with a sliding window. Raises
    SettingError, ConfigError or ModelError.
    """
    loop = config.train_config(device=device)
    check_objective(config)
    check_attention(config, device)
    with torch.device("meta"):
        model = GPT(config.model)
    config.optimizer.groups(model, loop.steps)
    if sliding is not None:
        if not 1 <= sliding <= config.context:
            raise SettingError(f"stride is {sliding}; accepted are 1 to the context, {config.context}")
        check_sliding(model)


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
