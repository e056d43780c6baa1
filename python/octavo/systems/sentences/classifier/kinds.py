"""The kinds of classifiers: built, saved and loaded with what turns texts into their ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from octavo import files, folders
from octavo._reading import VOCABULARY_BYTES, read_json
from octavo.data import CharTokenizer
from octavo.data.words import TYPE as WORDS
from octavo.data.words import WordTokenizer
from octavo.errors import ContainerError, DataError, SettingError
from octavo.folder.float_network import float_network
from octavo.folder.own_kinds import SHAPE
from octavo.folder.save_load import fill_folder
from octavo.folder.size_limits import Extent
from octavo.folder.skeleton import build_class
from octavo.folder.transformers_door import CONFIG, fill, known, load_config, load_tokenizer
from octavo.folder.unpack_weights import unpack
from octavo.folder.weight_files import CONFIGURATIONS, PLAIN_NAME, Checkpoint
from octavo.models.classifier import Classifier, ClassifierConfig
from octavo.systems.sentences.classifier.texts import Texts
from octavo.systems.sentences.sentiment import Sentences, Split
from octavo.systems.sentences.text_encoder import MINILM, find

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TINY = "tiny"
KINDS = (TINY, MINILM)
INFO, VOCABULARY = "classifier.json", "tokenizer.json"
# Of 0.1, beside the sizes in SHAPE.
FORMER_VOCABULARY = "vocabulary.json"
FILES = frozenset({INFO, VOCABULARY, FORMER_VOCABULARY, PLAIN_NAME, SHAPE, *CONFIGURATIONS})
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
            fill_folder(self.model, stage)
            self._save(stage)
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
    """Return the classifier of a model folder, float and in eval mode, and what was written beside it.

    The weights may be packed: they are decoded.

    Raises DataError or ContainerError for a folder that is none, FileNotFoundError where a file is missing.
    """
    folder = Path(folder)
    if folder.is_dir() and not (folder / INFO).exists():
        told = "No such file; octavo train sst2 writes the folder of a classifier"
        raise FileNotFoundError(2, told, str(folder / INFO))
    info = read_json(folder / INFO, error=DataError)
    if info.get("octavo") != 1 or info.get("kind") not in KINDS:
        raise DataError(
            f"{folder / INFO}: kind {info.get('kind')!r}, version {info.get('octavo')!r}; accepted are 1 and {KINDS}"
        )
    if info["kind"] == MINILM:
        loaded = _minilm(folder, {})
        loaded.model.eval()
        return loaded, info
    model, _ = float_network(folder, "classifier")
    assert isinstance(model, Classifier)  # it is what the kind says
    return tiny_classifier(_read_vocabulary(folder, model.config.vocabulary), model), info


# --- tiny -----------------------------------------------------------------------------------------------------------


def tiny_classifier(vocabulary: WordTokenizer | CharTokenizer, model: Classifier) -> TextClassifier:
    """Return a model of our own with its vocabulary."""

    def encode(texts: Sequence[str]) -> Ids:
        if isinstance(vocabulary, WordTokenizer):
            return tuple(tuple(vocabulary.encode(text)[:LONGEST]) for text in texts)
        ids, lengths = vocabulary.encode(list(texts), end=False)
        return tuple(tuple(row[: min(length, LONGEST)].tolist()) for row, length in zip(ids, lengths, strict=True))

    def save(folder: Path) -> None:
        vocabulary.save(folder / VOCABULARY)

    return TextClassifier(TINY, model, encode, save)


def vocabulary_of(texts: Sequence[str]) -> WordTokenizer | CharTokenizer:
    """Return a vocabulary of words, or of characters where no text has a space."""
    if any(" " in text for text in texts):
        return WordTokenizer.of(texts)
    return CharTokenizer("".join(sorted(set("".join(texts)))))


def _size(vocabulary: WordTokenizer | CharTokenizer) -> int:
    return len(vocabulary) if isinstance(vocabulary, WordTokenizer) else vocabulary.size


def _read_vocabulary(folder: Path, size: int) -> WordTokenizer | CharTokenizer:
    """Return the vocabulary of a folder, which must have ``size`` ids. Raises DataError, ContainerError, OSErrors."""
    path = folder / VOCABULARY
    if not path.exists() and (folder / FORMER_VOCABULARY).exists():
        path = folder / FORMER_VOCABULARY
    content = read_json(path, VOCABULARY_BYTES, error=DataError)
    found: WordTokenizer | CharTokenizer
    if path.name == VOCABULARY:
        found = WordTokenizer.load(path) if content.get("type") == WORDS else CharTokenizer.load(path)
    elif isinstance(content.get("words"), list):
        found = WordTokenizer(content["words"])
    elif isinstance(content.get("characters"), str):
        found = CharTokenizer(content["characters"])
    else:
        raise DataError(f"{path}: neither a list 'words' nor a text 'characters'")
    if _size(found) != size:
        raise ContainerError(f"{path}: {_size(found)} ids; the model has {size}")
    return found


# --- MiniLM ---------------------------------------------------------------------------------------------------------


def _minilm(folder: Path, changes: dict[str, Any]) -> TextClassifier:
    config, values = load_config(folder)
    for name, value in changes.items():
        setattr(config, name, value)
    tokenizer, tensors = load_tokenizer(folder, config), unpack(Checkpoint.open(folder))
    architecture = known(folder, _sequence_classifier(config), "classifier")
    if architecture is None:
        raise DataError(f"{folder}: transformers has no classifier for a {type(config).__name__}")
    build_class(folder, architecture, config, Extent.of_tensors(tensors, str(folder / CONFIG), values))
    model, _ = fill(architecture, config, tensors, folder)

    def encode(texts: Sequence[str]) -> Ids:
        return tuple(map(tuple, tokenizer(list(texts), truncation=True, max_length=LONGEST)["input_ids"]))

    def save(target: Path) -> None:
        cast("PreTrainedModel", model).config.save_pretrained(target)
        tokenizer.save_pretrained(target)

    return TextClassifier(MINILM, model, encode, save)


def _sequence_classifier(config: Any) -> Callable[[Any], Any]:
    return lambda transformers: transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
