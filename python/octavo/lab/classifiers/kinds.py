"""The kinds of classifiers: built, saved and loaded with what turns texts into their ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from octavo.compress.sentence_encoder import MINILM, find
from octavo.data import CharTokenizer
from octavo.data.labelled import Sentences, Split
from octavo.data.words import TYPE as WORDS
from octavo.data.words import WordTokenizer
from octavo.errors import ContainerError, DataError, SettingError
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.classifiers.texts import Texts
from octavo.model_folder.float_network import float_network
from octavo.model_folder.hf_loading import CONFIG, fill, known, load_config, load_tokenizer
from octavo.model_folder.infer_structure import filled_compact
from octavo.model_folder.model_config import SHAPE
from octavo.model_folder.save_load import fill_folder
from octavo.model_folder.size_limits import Extent
from octavo.model_folder.skeleton import build_class
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import CONFIGURATIONS, PLAIN_NAME, Checkpoint
from octavo.prune.sizes import KEY as SIZES
from octavo.storage import files, folders
from octavo.storage.reading import VOCABULARY_BYTES, read_json, shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TINY = "tiny"
KINDS = (TINY, MINILM)
INFO, VOCABULARY = "classifier.json", "tokenizer.json"
# Of 0.1, beside the sizes in SHAPE.
FORMER_VOCABULARY = "vocabulary.json"
FILES = frozenset({INFO, VOCABULARY, FORMER_VOCABULARY, PLAIN_NAME, SHAPE, *CONFIGURATIONS})
LONGEST, MOST = 64, 512  # tokens of a text that are read, and the most that may be asked for

Ids = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TextClassifier:
    """A model with its vocabulary. ``kind``: ``tiny`` or ``minilm``; ``encode``: texts to ids, cut at ``length``."""

    kind: str
    model: nn.Module
    encode: Callable[[Sequence[str]], Ids]
    length: int
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
            files.write(
                stage / INFO,
                json.dumps({"octavo": 1, "kind": self.kind, "length": self.length, **info}, indent=2) + "\n",
            )


def build(kind: str, split: Split, length: int = LONGEST) -> TextClassifier:
    """Return a model to be trained on ``split``: ``tiny`` from fresh weights, ``minilm`` pretrained with a fresh head.

    ``length``: tokens of a text that it reads, up to 512. Fresh weights come from torch's global generator. Raises
    SettingError for another kind or length, OctavoError where MiniLM or transformers is not installed.
    """
    check_length(length)
    classes = max(split.train.labels) + 1
    if kind == TINY:
        vocabulary = vocabulary_of(split.train.texts)
        config = ClassifierConfig(vocabulary=vocabulary_size(vocabulary), classes=classes, positions=length)
        return tiny_classifier(vocabulary, Classifier(config))
    if kind == MINILM:
        return _minilm(find(MINILM), {"num_labels": classes}, length)
    raise SettingError(f"unknown model {kind!r}; accepted are {', '.join(KINDS)}")


def check_length(length: int) -> None:
    """Refuse a number of tokens that no kind reads. Raises SettingError."""
    if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= MOST:
        raise SettingError(f"length is {shown(length)}; accepted are 1 to {MOST} tokens")


def load(folder: Path | str) -> tuple[TextClassifier, dict[str, Any]]:
    """Return the classifier of a model folder, float and in eval mode, and what was written beside it.

    The weights may be packed: they are decoded.

    Raises DataError or ContainerError for a folder that is none, FileNotFoundError where a file is missing.
    """
    folder = Path(folder)
    if folder.is_dir() and not (folder / INFO).exists():
        told = "No such file; octavo lab train classifier writes the folder of a classifier"
        raise FileNotFoundError(2, told, str(folder / INFO))
    info = read_json(folder / INFO, error=DataError)
    if info.get("octavo") != 1 or info.get("kind") not in KINDS:
        raise DataError(
            f"{folder / INFO}: kind {info.get('kind')!r}, version {info.get('octavo')!r}; accepted are 1 and {KINDS}"
        )
    length = info.get("length", LONGEST)  # 0.1 has none
    try:
        check_length(length)
    except SettingError as error:
        raise DataError(f"{folder / INFO}: {error}") from None
    if info["kind"] == MINILM:
        loaded = _minilm(folder, {}, length)
        loaded.model.eval()
        return loaded, info
    model, _ = float_network(folder, "classifier")
    assert isinstance(model, Classifier)  # it is what the kind says
    return tiny_classifier(vocabulary_in(folder, model.config.vocabulary), model), info


# --- tiny -----------------------------------------------------------------------------------------------------------


def tiny_classifier(vocabulary: WordTokenizer | CharTokenizer, model: Classifier) -> TextClassifier:
    """Return a model of our own with its vocabulary; it reads as many tokens as it has positions."""
    length = model.config.positions

    def encode(texts: Sequence[str]) -> Ids:
        if isinstance(vocabulary, WordTokenizer):
            return tuple(tuple(vocabulary.encode(text)[:length]) for text in texts)
        ids, lengths = vocabulary.encode(list(texts), end=False)
        return tuple(tuple(row[: min(own, length)].tolist()) for row, own in zip(ids, lengths, strict=True))

    def save(folder: Path) -> None:
        vocabulary.save(folder / VOCABULARY)

    return TextClassifier(TINY, model, encode, length, save)


def vocabulary_of(texts: Sequence[str]) -> WordTokenizer | CharTokenizer:
    """Return a vocabulary of words, or of characters where no text has a space."""
    if any(" " in text for text in texts):
        return WordTokenizer.of(texts)
    return CharTokenizer("".join(sorted(set("".join(texts)))))


def vocabulary_size(vocabulary: WordTokenizer | CharTokenizer) -> int:
    """Return the number of ids."""
    return len(vocabulary) if isinstance(vocabulary, WordTokenizer) else vocabulary.size


def vocabulary_in(folder: Path, size: int) -> WordTokenizer | CharTokenizer:
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
    if vocabulary_size(found) != size:
        raise ContainerError(f"{path}: {vocabulary_size(found)} ids; the model has {size}")
    return found


# --- MiniLM ---------------------------------------------------------------------------------------------------------


def _minilm(folder: Path, changes: dict[str, Any], length: int) -> TextClassifier:
    config, values = load_config(folder)
    for name, value in changes.items():
        setattr(config, name, value)
    tokenizer, tensors = load_tokenizer(folder, config), unpack(Checkpoint.open(folder))
    architecture = known(folder, _sequence_classifier(config), "classifier")
    if architecture is None:
        raise DataError(f"{folder}: transformers has no classifier for a {type(config).__name__}")
    build_class(folder, architecture, config, Extent.of_tensors(tensors, str(folder / CONFIG), values))
    if getattr(config, SIZES, None) is not None:
        model = filled_compact(architecture, config, tensors, folder)
    else:
        model, _ = fill(architecture, config, tensors, folder)

    def encode(texts: Sequence[str]) -> Ids:
        return tuple(map(tuple, tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]))

    def save(target: Path) -> None:
        cast("PreTrainedModel", model).config.save_pretrained(target)
        tokenizer.save_pretrained(target)

    return TextClassifier(MINILM, model, encode, length, save)


def _sequence_classifier(config: Any) -> Callable[[Any], Any]:
    return lambda transformers: transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
