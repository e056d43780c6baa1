"""The laboratory's networks as subjects of the library: ``octavo.subjects`` names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from octavo.errors import SettingError
from octavo.lab.polynomials.shipped import NAME
from octavo.model_folder.subject_registry import Subject

if TYPE_CHECKING:
    from torch import nn

#: Lines of a polynomial model in a batch.
_LINES = 64


class Polynomials(Subject):
    """Sequence-to-sequence models that expand polynomials, and the one that ships."""

    kind = "seq2seq"
    name = NAME
    former_variants: ClassVar = {"integer": "integer.safetensors"}

    def config(self) -> type[Any]:
        """Return ``Seq2SeqConfig``."""
        from octavo.lab.polynomials.seq2seq import Seq2SeqConfig

        return Seq2SeqConfig

    def network(self, config: Any) -> type[nn.Module]:
        """Return the class of its architecture."""
        from octavo.lab.polynomials.seq2seq import network

        return network(config)

    def folder(self) -> Path:
        """Return the folder of the model that ships."""
        from octavo.lab.polynomials.shipped import shipped_folder

        return shipped_folder()

    def job(self, label: str, folder: Path, data: Path | None, test: Path | None, *, lines: int) -> Any:
        """Return the job that is measured on lines of the generator, by the native engine."""
        from octavo.lab.polynomials.compression import polynomial_job

        if data is not None or test is not None:
            raise SettingError("a polynomial model has its own lines; leave --data and --test out")
        return polynomial_job(label, folder, lines=lines)

    def batches(self, folder: Path, model: nn.Module, texts: Sequence[str]) -> list[Any]:
        """Return lines ``left=right`` as batches of ids."""
        from octavo.lab.polynomials.accuracy import EncodedLines
        from octavo.lab.polynomials.export import load_model

        lines = EncodedLines.of(texts, load_model(folder)[1])
        pairs = zip(lines.source.split(_LINES), lines.target.split(_LINES), strict=True)
        return [{"source_BS": source, "target_BT": target} for source, target in pairs]


class Classifiers(Subject):
    """Classifiers of texts that were trained from fresh weights."""

    kind = "classifier"

    def config(self) -> type[Any]:
        """Return ``ClassifierConfig``."""
        from octavo.lab.classifiers import ClassifierConfig

        return ClassifierConfig

    def network(self, config: Any) -> type[nn.Module]:
        """Return ``Classifier``."""
        from octavo.lab.classifiers import network

        return network(config)

    def text_model(self, label: str, folder: Path, model: nn.Module) -> Any:
        """Return the classifier with its vocabulary of words."""
        from octavo.compress.text_models import PaddedIds, TextModel
        from octavo.lab.classifiers.kinds import tiny_classifier, vocabulary_in

        config: Any = model.config
        encode = tiny_classifier(vocabulary_in(folder, config.vocabulary), model).encode  # type: ignore[arg-type] # a Classifier
        return TextModel(label, folder, model, PaddedIds(encode, config.positions), "classifier")


class Language(Subject):
    """Language models of named techniques."""

    kind = "gpt"

    def config(self) -> type[Any]:
        """Return ``GPTConfig``."""
        from octavo.lab.language.gpt import GPTConfig

        return GPTConfig

    def network(self, config: Any) -> type[nn.Module]:
        """Return ``GPT``."""
        from octavo.lab.language.gpt import network

        return network(config)

    def text_model(self, label: str, folder: Path, model: nn.Module) -> Any:
        """Return the language model with its byte pairs."""
        from octavo.compress.text_models import TextModel
        from octavo.data import BytePairTokenizer

        return TextModel(label, folder, model, BytePairTokenizer.load(folder), "language", "ids_BT")


POLYNOMIALS = Polynomials()
CLASSIFIERS = Classifiers()
LANGUAGE = Language()
