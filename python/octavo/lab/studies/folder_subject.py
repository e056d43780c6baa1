"""A classifier of transformers as it lies in its folder, without training: what the study of memory measures."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from octavo.compress.graph_subjects import subject as model_and_inputs
from octavo.compress.text_models import positions_of, task_of, text_model
from octavo.data.calibration_texts import read_texts
from octavo.errors import ModelError, SettingError
from octavo.lab.studies.subject_catalogue import open_subject
from octavo.search.fingerprints import identity_of

LENGTH = 128
"""Tokens of a text that are read unless told."""
MOST = 1024  # texts of random ids


class FolderSubject:
    """The model of a folder with texts of a file, or random ids; the parts of a subject that memory depends on."""

    metric, held_out = "answers", False

    def __init__(self, folder: Path, *, texts: Path | None, length: int | None, device: torch.device) -> None:
        """Load the model. ``texts``: a file, one text a line or labelled; None: ids drawn from the vocabulary.

        Raises ModelError for a model that is no classifier, SettingError for a length below 1, DataError for texts that
        cannot be read, and as :func:`octavo.load_model`.
        """
        if length is not None and length < 1:
            raise SettingError(f"--length is {length}; accepted are whole numbers of at least 1")
        self.name, self.device = folder.resolve().name, device
        model, _ = model_and_inputs(str(folder), values=True)
        if task_of(model) != "classifier":
            raise ModelError(
                f"{folder}: a {type(model).__name__} has no classes whose scores could be compared; accepted are "
                "classifiers of texts, such as BertForSequenceClassification"
            )
        self._model = model.float().eval()
        self._length = int(min(LENGTH if length is None else length, positions_of(model)))
        self._vocabulary = int(getattr(model.config, "vocab_size", 0))
        self._texts = None if texts is None else list(read_texts(texts))
        self._opened = None if texts is None else text_model(str(folder), folder, model)
        self.blueprint = {"kind": "transformers", "config": None}
        self.identity: dict[str, Any] = {"model": self.name, "length": self._length}
        self.identity |= identity_of(weights=self._model, ids=self._batches(MOST, 8, 0)).digests

    def model(self) -> nn.Module:
        """Return a copy of the float32 model, on the CPU: the study moves it."""
        return deepcopy(self._model)

    def calibration(self, samples: int, seed: int) -> list[Any]:
        """Return batches of the first texts, up to 64; random ids come from ``seed``."""
        return self._batches(min(samples, 64), 8, seed + 1)

    def inputs(self, count: int, size: int) -> list[Any]:
        """Return the first ``count`` texts as batches of ``size``."""
        return self._batches(count, size, 0)

    def _batches(self, count: int, size: int, seed: int) -> list[Any]:
        if self._opened is not None and self._texts is not None:
            return list(self._opened.batches(self._texts[:count], size=size, tokens=self._length))
        generator = torch.Generator().manual_seed(seed)
        first = min(5, self._vocabulary - 1)  # past the ids of padding and of marks
        ids = torch.randint(first, self._vocabulary, (min(count, MOST), self._length), generator=generator)
        return [{"input_ids": part, "attention_mask": torch.ones_like(part)} for part in ids.split(size)]


def open_for_memory(
    name: str, folder: Path, *, device: torch.device, data: Path | None = None, length: int | None = None, **others: Any
) -> Any:
    """Return the subject of the study of memory: the model of a folder as it is, else a trained one.

    A folder is taken as it is where ``data`` is None or a file of texts, and no other option names texts or a run.
    ``others``: further options of :func:`octavo.lab.studies.subject_catalogue.open_subject`.
    """
    texts = data is None or not data.is_dir()
    if (
        Path(name).is_dir()
        and texts
        and not any(others.get(option) for option in ("trained", "corpus", "test", "held_out"))
    ):
        return FolderSubject(Path(name), texts=data, length=length, device=device)
    return open_subject(name, folder, device=device, data=data, length=length, **others)
