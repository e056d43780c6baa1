"""What ``octavo lab train gpt`` chooses: a preset, its scale, tokens, and fields that differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.errors import SettingError
from octavo.lab.language.bench_arms import arm, check_run
from octavo.lab.language.gpt.presets import GPT2_VOCABULARY
from octavo.lab.language.language_config import LanguageConfig, Muon, Until
from octavo.lab.language.language_run import LanguageReport, train_language
from octavo.lab.language.language_scales import SCALES, Scale
from octavo.lab.language.token_data import Tell, TokenData, prepare, read_folder


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Options of the command; None is what preset and scale say.

    ``preset``: as an arm of the bench, ``NAME``, ``NAME+NAME`` or ``NAME@FIELD=VALUE,...``. ``fields``: more texts
    ``FIELD=VALUE``. ``sliding``: the stride of a validation with a sliding window.
    """

    preset: str = "nocap_baseline"
    fields: tuple[str, ...] = ()
    scale: str | None = None
    tokens: int | None = None
    vocabulary: int | None = None
    learning_rate: float | None = None
    precision: str | None = None
    validation_tokens: int | None = None
    compile: bool = False
    until: Until | None = None
    sliding: int | None = None
    seed: int = 0
    device: str = "auto"

    def prepare(self, data: Path, folder: Path, tell: Tell | None = None) -> Ready:
        """Check the options, make shards of text in ``folder``, and return what is to be run.

        Raises SettingError and ConfigError naming an option, DataError, OSErrors.
        """
        shards = data.is_dir() and any(file.suffix == ".bin" for file in data.iterdir())
        tokens = read_folder(data) if shards else None
        scale = self._scale("true" if tokens is not None and tokens.vocabulary == GPT2_VOCABULARY else "micro")
        # Refuse now what would be refused after the vocabulary is learned, which gives documents their first id.
        self._config(replace(scale, end_of_text=scale.end_of_text or 0))
        if tokens is None:
            size = scale.vocabulary if self.vocabulary is None else self.vocabulary
            held_out = self.validation_tokens or scale.validation_tokens
            tokens = prepare(data, folder / "data", vocabulary=size, validation_tokens=held_out, tell=tell)
        fitted = replace(scale, vocabulary=tokens.vocabulary, end_of_text=tokens.end)
        return Ready(self._config(fitted), tokens, self.seed, self.device, self.sliding)

    def _scale(self, usual: str) -> Scale:
        name = self.scale or usual
        if name not in SCALES:
            raise SettingError(f"scale is {name!r}; accepted are {', '.join(SCALES)}")
        return SCALES[name]

    def _config(self, scale: Scale) -> LanguageConfig:
        config = arm(self.preset + "".join(self._separated()), scale)
        changes = {name: getattr(self, name) for name in ("tokens", "precision", "validation_tokens")}
        config = replace(config, **{name: value for name, value in changes.items() if value is not None})
        if self.learning_rate is not None:
            if isinstance(config.optimizer, Muon):
                raise SettingError(f"--lr is {self.learning_rate}; {self.preset} trains with Muon, which has its own")
            config = replace(config, optimizer=replace(config.optimizer, learning_rate=self.learning_rate))
        config = replace(config, compile=self.compile, until=self.until)
        config.train_config(seed=self.seed, device=self.device)
        check_run(config, device=self.device, sliding=self.sliding)
        return config

    def _separated(self) -> Iterator[str]:
        """Yield the fields as they follow the name of an arm."""
        begun = "@" in self.preset
        for field in self.fields:
            yield f"{',' if begun else '@'}{field}"
            begun = True


@dataclass(frozen=True)
class Ready:
    """A run whose tokens are there."""

    config: LanguageConfig
    data: TokenData
    seed: int
    device: str
    sliding: int | None


def train_gpt(ready: Ready, folder: Path) -> LanguageReport | None:
    """Train as :func:`octavo.lab.language.language_run.train_language` does."""
    return train_language(ready.config, ready.data, folder, seed=ready.seed, device=ready.device, sliding=ready.sliding)
