"""The kinds of classifiers: built, saved and loaded with what turns texts into their ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from octavo import container, files, folders
from octavo._reading import VOCABULARY_BYTES, read_json
from octavo.data import CharTokenizer
from octavo.data.words import WordTokenizer
from octavo.errors import ContainerError, DataError, SettingError
from octavo.folder.pack_checkpoint import unpack_tensors
from octavo.folder.size_limits import Extent
from octavo.folder.skeleton import build as build_module
from octavo.folder.skeleton import build_class
from octavo.folder.transformers_door import CONFIG, fill, known, load_config, load_tokenizer
from octavo.folder.weight_files import CONFIGURATIONS, Checkpoint
from octavo.systems.sentences.classifier.classifier_config import ClassifierConfig
from octavo.systems.sentences.classifier.network import Classifier
from octavo.systems.sentences.classifier.texts import Texts
from octavo.systems.sentences.sentiment import Sentences, Split
from octavo.systems.sentences.text_encoder import MINILM, find
from octavo.tensor import FLOATS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    info = read_json(folder / INFO, error=DataError)
    if info.get("octavo") != 1 or info.get("kind") not in KINDS:
        raise DataError(
            f"{folder / INFO}: kind {info.get('kind')!r}, version {info.get('octavo')!r}; accepted are 1 and {KINDS}"
        )
    if info["kind"] == MINILM:
        loaded = _minilm(folder, {})
    else:
        vocabulary = _read_vocabulary(folder / VOCABULARY)
        loaded = tiny_classifier(vocabulary, _tiny(folder))
    loaded.model.eval()
    return loaded, info


def _tiny(folder: Path) -> Classifier:
    """Return the model of a folder; its layers are built without memory, and hold what the file has."""
    shape, file = folder / SHAPE, folder / WEIGHTS
    values = read_json(shape, error=DataError)
    try:
        config = ClassifierConfig.from_dict(values)
    except SettingError as error:
        raise SettingError(f"{shape}: {error}") from None
    tensors = container.load(file)
    model = build_module(lambda: Classifier(config), Extent.of_tensors(tensors, str(shape), values))
    places = model.state_dict()
    for name in sorted(places.keys() ^ tensors.keys()):
        raise ContainerError(f"{file}: {name} is {'missing' if name in places else f'no weight of {SHAPE}'}")
    weights: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.shape != places[name].shape:
            raise ContainerError(
                f"{file}: {name} has shape {tuple(tensor.shape)}; {SHAPE} says {tuple(places[name].shape)}"
            )
        if tensor.dtype not in FLOATS:
            raise ContainerError(f"{file}: {name} has dtype {tensor.dtype}; accepted are {', '.join(map(str, FLOATS))}")
        weights[name] = tensor.float()
    model.load_state_dict(weights, assign=True)
    return model


# --- tiny -----------------------------------------------------------------------------------------------------------


def tiny_classifier(vocabulary: WordTokenizer | CharTokenizer, model: Classifier) -> TextClassifier:
    """Return a model of our own with its vocabulary."""

    def encode(texts: Sequence[str]) -> Ids:
        if isinstance(vocabulary, WordTokenizer):
            return tuple(tuple(vocabulary.encode(text)[:LONGEST]) for text in texts)
        ids, lengths = vocabulary.encode(list(texts), end=False)
        return tuple(tuple(row[: min(length, LONGEST)].tolist()) for row, length in zip(ids, lengths, strict=True))

    def save(folder: Path) -> None:
        content: dict[str, object]
        if isinstance(vocabulary, WordTokenizer):
            content = {"words": vocabulary.words}
        else:
            content = {"characters": vocabulary.characters}
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
    content = read_json(path, VOCABULARY_BYTES, error=DataError)
    if isinstance(content.get("words"), list):
        return WordTokenizer(content["words"])
    if isinstance(content.get("characters"), str):
        return CharTokenizer(content["characters"])
    raise DataError(f"{path}: neither a list 'words' nor a text 'characters'")


# --- MiniLM ---------------------------------------------------------------------------------------------------------


def _minilm(folder: Path, changes: dict[str, Any]) -> TextClassifier:
    config, values = load_config(folder)
    for name, value in changes.items():
        setattr(config, name, value)
    tokenizer, tensors = load_tokenizer(folder, config), unpack_tensors(Checkpoint.open(folder).tensors())
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
