"""Models that read texts, as commands find them: by name or by folder, with their tokenizer and what they are for."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from octavo.compress.by_name import find
from octavo.data.calibration_texts import cut_windows, end_of_text, text_ids, window_batches
from octavo.data.file_tensors import MOST_HELD, in_file
from octavo.data.labelled import Sentences
from octavo.data.labelled_files import is_json_lines, read_labelled
from octavo.errors import DataError, OctavoError
from octavo.model_folder.hf_loading import foreign, load_config, load_tokenizer
from octavo.model_folder.model_config import own_model
from octavo.model_folder.save_load import load_model
from octavo.model_folder.subject_registry import subject_of
from octavo.model_folder.weight_files import Checkpoint, refuse_file

Task = Literal["language", "classifier", "embeddings", "other"]


@dataclass(frozen=True)
class TextModel:
    """A model with its tokenizer. ``task``: what it is for. ``argument``: what its ``forward`` calls the ids."""

    name: str
    folder: Path
    model: nn.Module
    tokenizer: Any
    task: Task
    argument: str = "input_ids"

    @property
    def classes(self) -> Mapping[str, int] | None:
        """The names of a classifier's classes; None where its configuration has none."""
        found = getattr(getattr(self.model, "config", None), "label2id", None)
        return found if isinstance(found, dict) and found else None

    def batches(
        self, texts: Sequence[str], *, size: int = 8, tokens: int = 64, lines: bool = True
    ) -> list[dict[str, Tensor]]:
        """Return texts as batches of ``size``, in their order.

        Of a language model they are full windows of ``tokens``: of one text, whose ``lines`` are given, or of texts
        of their own, as :func:`octavo.data.text_windows` cuts them. Raises DataError for texts without a whole window.
        """
        if self.task == "language":
            with foreign(self.folder, what="tokenizer"):
                documents = ["\n".join(texts)] if lines else texts
                cut = cut_windows(
                    (text_ids(self.tokenizer, text) for text in documents), tokens, end_of_text(self.tokenizer)
                )
            return window_batches(cut, tokens, self.argument, size)
        made, longest = [], min(tokens, self.tokenizer.model_max_length)
        for start in range(0, len(texts), size):
            part = list(texts[start : start + size])
            made.append(
                dict(self.tokenizer(part, padding=True, truncation=True, max_length=longest, return_tensors="pt"))
            )
        return made


def open_text_model(given: str) -> TextModel:
    """Return the model that a command names: ``minilm``, or a folder that ``octavo.load_model`` reads.

    It is float32 outside packed layers, and in evaluation; weights lie in mapped files. Raises OctavoError for a name
    that is none, ModelError for one without a tokenizer, and as ``octavo.load_model``.
    """
    folder = find(given)
    refuse_file(folder)
    Checkpoint.open(folder).verify()
    return text_model(given, folder, widened(load_model(folder, mmap=True)).eval())


def widened(model: nn.Module) -> nn.Module:
    """Return a model in float32, in place; what was not is in mapped files then, where it is large."""
    large = sum(4 * parameter.numel() for parameter in model.parameters()) > MOST_HELD
    for parameter in model.parameters():
        if large and parameter.is_floating_point() and parameter.dtype != torch.float32:
            parameter.data = in_file(parameter, torch.float32)
    return model.float()


def text_model(given: str, folder: Path, model: nn.Module) -> TextModel:
    """Return a model of a folder with the folder's tokenizer. Raises ModelError where there is none."""
    if (guest := subject_of(model)) is not None:
        opened: TextModel = guest.text_model(given, folder, model)
        return opened
    config, _ = load_config(folder)
    tokenizer = load_tokenizer(folder, config)
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.model_max_length = min(tokenizer.model_max_length, positions_of(model))
    return TextModel(given, folder, model, tokenizer, task_of(model))


def template_of(folder: Path, data: Path) -> Any:
    """Return the tokenizer of a folder of transformers, whose template renders the chat messages of ``data``.

    None where ``data`` can hold none, and where the folder is of a model of ours.
    """
    if not is_json_lines(data) or own_model(folder) is not None:
        return None
    return load_tokenizer(folder, load_config(folder)[0])


def positions_of(model: nn.Module) -> float:
    """Return the tokens of a text that a model of transformers has positions for; infinity where it has no table.

    Tables with a row for padding, as RoBERTa's, give the rows behind it to tokens.
    """
    tables = [
        module.weight.shape[0] - (0 if module.padding_idx is None else module.padding_idx + 1)
        for path, module in model.named_modules()
        if path.rpartition(".")[2] in ("position_embeddings", "wpe") and hasattr(module, "padding_idx")
    ]
    return min(tables, default=math.inf)


def task_of(model: nn.Module) -> Task:
    """Return what a model of transformers is for, by its class."""
    name = type(model).__name__
    if name.endswith(("LMHeadModel", "ForCausalLM")):
        return "language"
    if name.endswith("ForSequenceClassification"):
        return "classifier"
    decodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    reads = "input_ids" in inspect.signature(model.forward).parameters
    return "embeddings" if reads and not decodes else "other"


class PaddedIds:
    """The vocabulary of a classifier of ours, called as a tokenizer of transformers is."""

    pad_token = "[PAD]"

    def __init__(self, encode: Any, longest: int) -> None:
        """Take the function from texts to ids."""
        self._encode, self.model_max_length = encode, longest

    def __call__(self, texts: Sequence[str], *, max_length: int | None = None, **_: Any) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask``, ``[texts, T]``, padded at their ends."""
        rows = [list(ids)[:max_length] for ids in self._encode(list(texts))]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}


def labelled_for(model: TextModel, path: Path, field: str | None = None) -> Sentences:
    """Return labelled texts for a classifier. Raises DataError for other models, and as ``read_labelled``."""
    if model.task != "classifier":
        raise DataError(f"{path}: labelled texts need a classifier; {model.name} is a {type(model.model).__name__}")
    return read_labelled(path, model.classes, field=field)


def check_task(model: TextModel) -> None:
    """Refuse a model whose quality cannot be measured alone. Raises OctavoError."""
    if model.task in ("embeddings", "other"):
        raise OctavoError(
            f"{model.name}: a {type(model.model).__name__} has no quality of its own to measure on texts; give "
            "--against with the model that it should agree with"
        )
