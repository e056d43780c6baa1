"""The kinds of classifiers: built, saved and loaded with what turns texts into their ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from octavo import container, files, folders
from octavo.data import CharTokenizer
from octavo.data.sentiment import Sentences, Split
from octavo.data.words import WordTokenizer
from octavo.errors import ContainerError, DataError, OctavoError, SettingError
from octavo.models.classifier.config import ClassifierConfig
from octavo.models.classifier.model import Classifier
from octavo.models.classifier.texts import Texts
from octavo.models.minilm import MINILM, find
from octavo.quant.checkpoint import CONFIGURATIONS

TINY = "tiny"
KINDS = (TINY, MINILM)
INFO, WEIGHTS, VOCABULARY, SHAPE = "classifier.json", "model.safetensors", "vocabulary.json", "shape.json"
FILES = frozenset({INFO, WEIGHTS, VOCABULARY, SHAPE, *CONFIGURATIONS})
LONGEST = 64  # tokens of a text; what is behind them is not read

Ids = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TextClassifier:
    """A model with its vocabulary. ``kind``: ``tiny`` or ``minilm``; ``encode``: texts to ids, cut at ``LONGEST``."""

    kind: str
    model: nn.Module
    encode: Callable[[Sequence[str]], Ids]
    _save: Callable[[Path], None]

    def blueprint(self) -> dict[str, Any]:
        """Return plain values that say how the model is made without its weights."""
        config = self.model.config.as_dict() if isinstance(self.model, Classifier) else None
        return {"kind": self.kind, "config": config}

    def texts(self, sentences: Sentences) -> Texts:
        """Return sentences as ids and labels."""
        return Texts(self.encode(sentences.texts), torch.tensor(sentences.labels))

    def save(self, folder: Path, info: dict[str, Any]) -> None:
        """Write a model folder, which appears complete or not at all and replaces the model of one that is there."""
        with folders.whole(folder, owned=FILES) as stage:
            self._save(stage)
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
            container.save(tensors, stage / WEIGHTS, metadata={"format": "pt"})
            files.write(stage / INFO, json.dumps({"octavo": 1, "kind": self.kind, **info}, indent=2) + "\n")


def build(kind: str, split: Split) -> TextClassifier:
    """Return a model to be trained on ``split``: ``tiny`` from fresh weights, ``minilm`` pretrained with a fresh head.

    Fresh weights come from torch's global generator. Raises SettingError for another kind, OctavoError where MiniLM or
    transformers is not installed.
    """
    classes = max(split.train.labels) + 1
    if kind == TINY:
        vocabulary = vocabulary_of(split.train.texts)
        config = ClassifierConfig(vocabulary=_size(vocabulary), classes=classes, positions=LONGEST)
        return tiny_classifier(vocabulary, Classifier(config))
    if kind == MINILM:
        return _minilm(find(MINILM), {"num_labels": classes})
    raise SettingError(f"unknown model {kind!r}; accepted are {', '.join(KINDS)}")


def load(folder: Path | str) -> tuple[TextClassifier, dict[str, Any]]:
    """Return the classifier of a model folder, in eval mode, and what was written beside it.

    Raises DataError or ContainerError for a folder that is none, FileNotFoundError where a file is missing.
    """
    folder = Path(folder)
    info = _read_json(folder / INFO)
    if info.get("octavo") != 1 or info.get("kind") not in KINDS:
        raise DataError(
            f"{folder / INFO}: kind {info.get('kind')!r}, version {info.get('octavo')!r}; accepted are 1 and {KINDS}"
        )
    if info["kind"] == MINILM:
        loaded = _minilm(folder, {})
    else:
        vocabulary = _read_vocabulary(folder / VOCABULARY)
        with torch.random.fork_rng(devices=[]):  # the fresh weights are replaced at once
            model = Classifier(ClassifierConfig.from_dict(_read_json(folder / SHAPE)))
        try:
            model.load_state_dict(container.load(folder / WEIGHTS))
        except RuntimeError as error:
            told = " ".join(str(error).split())[:300]
            raise ContainerError(f"{folder / WEIGHTS}: not the weights of {SHAPE}: {told}") from None
        loaded = tiny_classifier(vocabulary, model)
    loaded.model.eval()
    return loaded, info


# --- tiny -----------------------------------------------------------------------------------------------------------


def tiny_classifier(vocabulary: WordTokenizer | CharTokenizer, model: Classifier) -> TextClassifier:
    """Return a model of our own with its vocabulary."""

    def encode(texts: Sequence[str]) -> Ids:
        if isinstance(vocabulary, WordTokenizer):
            return tuple(tuple(vocabulary.encode(text)[:LONGEST]) for text in texts)
        ids, lengths = vocabulary.encode(list(texts), end=False)
        return tuple(tuple(row[: min(length, LONGEST)].tolist()) for row, length in zip(ids, lengths, strict=True))

    def save(folder: Path) -> None:
        words = isinstance(vocabulary, WordTokenizer)
        content = {"words": vocabulary.words} if words else {"characters": vocabulary.characters}
        files.write(folder / VOCABULARY, json.dumps(content, ensure_ascii=False) + "\n")
        files.write(folder / SHAPE, json.dumps(model.config.as_dict(), indent=2) + "\n")

    return TextClassifier(TINY, model, encode, save)


def vocabulary_of(texts: Sequence[str]) -> WordTokenizer | CharTokenizer:
    """Return a vocabulary of words, or of characters where no text has a space."""
    if any(" " in text for text in texts):
        return WordTokenizer.of(texts)
    return CharTokenizer("".join(sorted(set("".join(texts)))))


def _size(vocabulary: WordTokenizer | CharTokenizer) -> int:
    return len(vocabulary) if isinstance(vocabulary, WordTokenizer) else vocabulary.size


def _read_vocabulary(path: Path) -> WordTokenizer | CharTokenizer:
    content = _read_json(path)
    if isinstance(content.get("words"), list):
        return WordTokenizer(content["words"])
    if isinstance(content.get("characters"), str):
        return CharTokenizer(content["characters"])
    raise DataError(f"{path}: neither a list 'words' nor a text 'characters'")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: a JSON object is expected, got a {type(content).__name__}")
    return content


# --- MiniLM ---------------------------------------------------------------------------------------------------------


def _minilm(folder: Path, changes: dict[str, Any]) -> TextClassifier:
    try:
        import transformers
    except ImportError:
        raise OctavoError("MiniLM needs transformers; install the extra 'demo': pip install \"octavo[demo]\"") from None
    shown = transformers.utils.logging
    shown.set_verbosity_error()
    shown.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, **changes
        )
    except (ValueError, KeyError, OSError) as error:
        raise DataError(f"{folder}: not the folder of a classifier that transformers knows: {error}") from None

    def encode(texts: Sequence[str]) -> Ids:
        return tuple(map(tuple, tokenizer(list(texts), truncation=True, max_length=LONGEST)["input_ids"]))

    def save(target: Path) -> None:
        model.config.save_pretrained(target)
        tokenizer.save_pretrained(target)

    return TextClassifier(MINILM, model, encode, save)
