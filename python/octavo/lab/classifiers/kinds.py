"""The kinds of classifiers: built, saved and loaded with what turns texts into their ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.data import CharTokenizer
from octavo.data.labelled import Split
from octavo.data.words import TYPE as WORDS
from octavo.data.words import WordTokenizer
from octavo.errors import ContainerError, DataError, SettingError
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.classifiers.pretrained import pretrained
from octavo.lab.classifiers.text_classifier import (
    FORMER_VOCABULARY,
    INFO,
    LONGEST,
    VOCABULARY,
    Ids,
    TextClassifier,
    check_length,
)
from octavo.model_folder.float_network import float_network
from octavo.storage.named_models import MINILM, carried
from octavo.storage.reading import VOCABULARY_BYTES, read_json

TINY, TRANSFORMERS = "tiny", "transformers"
#: Classifiers that have a name; any other is the folder of a model of transformers.
KINDS = (TINY, MINILM)


def build(kind: str, split: Split, length: int | None = None) -> TextClassifier:
    """Return a model to be trained on ``split``: ``tiny`` from fresh weights, ``minilm`` pretrained with a fresh head.

    ``kind``: also the folder of a model of transformers, which keeps a head of as many classes as the texts have.
    ``length``: tokens of a text that it reads, up to 512; None: 64, or as many as a folder's model has positions for.
    Fresh weights come from torch's global generator.

    Raises SettingError for another kind or length, OctavoError where MiniLM or transformers is not installed,
    ContainerError for a folder that cannot be read.
    """
    if length is not None:
        check_length(length)
    classes = max(split.train.labels) + 1
    if kind == TINY:
        vocabulary = vocabulary_of(split.train.texts)
        positions = LONGEST if length is None else length
        config = ClassifierConfig(vocabulary=vocabulary_size(vocabulary), classes=classes, positions=positions)
        return tiny_classifier(vocabulary, Classifier(config))
    if kind == MINILM:
        return pretrained(MINILM, carried(MINILM), length, classes, split.names)[0]
    return pretrained(TRANSFORMERS, model_folder(kind), length, classes, split.names)[0]


def check_model(name: str, others: Sequence[str] = (), *, trained: bool = False) -> None:
    """Refuse what names no classifier and none of ``others``. Raises SettingError.

    ``trained``: a run has the weights, so that ``transformers`` is name enough.
    """
    if name not in (*KINDS, *others, *((TRANSFORMERS,) if trained else ())):
        model_folder(name, others)


def model_folder(name: str, others: Sequence[str] = ()) -> Path:
    """Return the folder of a model of transformers. Raises SettingError for what is none, or a run of our own."""
    folder = Path(name)
    if not folder.is_dir():
        known = ", ".join((*KINDS, *others))
        raise SettingError(f"unknown model {name!r}; accepted are {known} and the folder of a model of transformers")
    for run in (folder, folder.parent):
        if (run / "model" / INFO).exists():
            kind = read_json(run / "model" / INFO, error=DataError).get("kind")
            raise SettingError(f"{folder}: a run of octavo lab train classifier; give --model {kind} --trained {run}")
    return folder


def kind_of(name: str) -> str:
    """Return the kind of a model by its name: itself, or ``transformers`` for a folder."""
    return name if name in KINDS else TRANSFORMERS


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
    kinds = (*KINDS, TRANSFORMERS)
    if info.get("octavo") != 1 or info.get("kind") not in kinds:
        raise DataError(
            f"{folder / INFO}: kind {info.get('kind')!r}, version {info.get('octavo')!r}; accepted are 1 and {kinds}"
        )
    length = info.get("length", LONGEST)  # 0.1 has none
    try:
        check_length(length)
    except SettingError as error:
        raise DataError(f"{folder / INFO}: {error}") from None
    if info["kind"] != TINY:
        loaded, _ = pretrained(info["kind"], folder, length)
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
