"""A text classifier: a model with what turns texts into its ids, and the folder that both are written to."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from octavo.data.labelled import Sentences
from octavo.errors import SettingError
from octavo.lab.classifiers import Classifier
from octavo.lab.classifiers.texts import PAD, Batch, Texts
from octavo.model_folder.companion_files import TOKENIZER_TEXTS, VOCABULARIES
from octavo.model_folder.model_config import SHAPE
from octavo.model_folder.save_load import fill_folder
from octavo.model_folder.weight_files import CONFIGURATIONS, PLAIN_NAME
from octavo.storage import files, folders
from octavo.storage.reading import shown

INFO, VOCABULARY = "classifier.json", "tokenizer.json"
# Of 0.1, beside the sizes in SHAPE.
FORMER_VOCABULARY = "vocabulary.json"
FILES = frozenset(
    {INFO, VOCABULARY, FORMER_VOCABULARY, PLAIN_NAME, SHAPE, *CONFIGURATIONS, *TOKENIZER_TEXTS, *VOCABULARIES}
)
LONGEST, MOST = 64, 512  # tokens of a text that are read, and the most that may be asked for

Ids = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PaddedTexts(Texts):
    """Texts of a tokenizer that pads by another id than 0."""

    pad: int

    def pick(self, rows: Sequence[int]) -> Texts:
        """Return some of the texts, in the given order."""
        chosen = super().pick(rows)
        return PaddedTexts(chosen.ids, chosen.labels, self.pad)

    def inputs(self, rows: Sequence[int]) -> Batch:
        """Return ``input_ids`` and ``attention_mask``, [rows, T] int64, padded to the longest of them."""
        batch = super().inputs(rows)
        return {**batch, "input_ids": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, self.pad)}


@dataclass(frozen=True)
class TextClassifier:
    """A model with its vocabulary. ``kind``: ``tiny``, ``minilm`` or ``transformers``; ``encode``: texts to ids, cut at
    ``length``; ``head``: the path of the Linear layer that gives the scores; ``pad``: the id that fills rows up.
    """

    kind: str
    model: nn.Module
    encode: Callable[[Sequence[str]], Ids]
    length: int
    _save: Callable[[Path], None]
    head: str = "classifier"
    pad: int = PAD

    def blueprint(self) -> dict[str, Any]:
        """Return plain values that say how the model is made without its weights."""
        config = self.model.config.as_dict() if isinstance(self.model, Classifier) else None
        return {"kind": self.kind, "config": config}

    def texts(self, sentences: Sentences) -> Texts:
        """Return sentences as ids and labels."""
        ids, labels = self.encode(sentences.texts), torch.tensor(sentences.labels)
        return Texts(ids, labels) if self.pad == PAD else PaddedTexts(ids, labels, self.pad)

    def save(self, folder: Path, info: dict[str, Any]) -> None:
        """Write a model folder, which appears complete or not at all and replaces the model of one that is there."""
        with folders.whole(folder, owned=FILES) as stage:
            fill_folder(self.model, stage)
            self._save(stage)
            files.write(
                stage / INFO,
                json.dumps({"octavo": 1, "kind": self.kind, "length": self.length, **info}, indent=2) + "\n",
            )


def check_length(length: int) -> None:
    """Refuse a number of tokens that no kind reads. Raises SettingError."""
    if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= MOST:
        raise SettingError(f"length is {shown(length)}; accepted are 1 to {MOST} tokens")
