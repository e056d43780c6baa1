"""What presets are made of: the baseline, and functions that return it with one difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from octavo.lab.language import gpt
from octavo.lab.language.language_config import AdamW, LanguageConfig, Phase
from octavo.lab.language.language_scales import Scale

Make = Callable[[Scale], LanguageConfig]


@dataclass(frozen=True)
class Preset:
    """A function from sizes to a run, what it is in a line, and what is predicted of it."""

    make: Make
    told: str
    predicted: str


def keeper(presets: dict[str, Preset]) -> Callable[..., Callable[[Make], Make]]:
    """Return a decorator with a preset's line and prediction, which keeps a function in ``presets`` by its name."""

    def described(told: str, predicted: str = "even") -> Callable[[Make], Make]:
        def kept(make: Make) -> Make:
            presets[make.__name__] = Preset(make, told, predicted)
            return make

        return kept

    return described


def nocap_baseline(scale: Scale) -> LanguageConfig:
    """Return the baseline."""
    return LanguageConfig(
        model=gpt.nocap_baseline(
            vocabulary=scale.vocabulary, width=scale.width, layers=scale.layers, heads=scale.heads,
            end_of_text=scale.end_of_text,
        ),
        tokens=scale.tokens,
        phases=(Phase(share=1.0, context=scale.context, batch=scale.batch),),
        micro_tokens=scale.micro_tokens,
        validation_tokens=scale.validation_tokens,
        optimizer=AdamW(learning_rate=scale.learning_rate),
        precision=scale.precision,
    )  # fmt: skip


def with_model(base: LanguageConfig, **changes: Any) -> LanguageConfig:
    """Return a run with fields of its model that differ."""
    return replace(base, model=replace(base.model, **changes))


def with_mixer(scale: Scale, mixer: Any) -> LanguageConfig:
    """Return the baseline with ``mixer`` in every block."""
    return with_model(nocap_baseline(scale), mixers={"a": mixer})


def with_pattern(scale: Scale, pattern: str, **mixers: Any) -> LanguageConfig:
    """Return the baseline with a letter a block; ``a`` is its attention, ``mixers`` give the others."""
    letters = {"a": gpt.Attention(heads=scale.heads), **mixers}
    return with_model(nocap_baseline(scale), pattern=pattern, mixers={one: letters[one] for one in set(pattern)})


def with_batch(base: LanguageConfig, batch: int) -> LanguageConfig:
    """Return a run whose stages have updates of ``batch`` sequences."""
    return replace(base, phases=tuple(replace(phase, batch=max(1, batch)) for phase in base.phases))
