"""The folder of a trained language model: ``config.json``, ``model.octavo.safetensors``, ``tokenizer.json``."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.data import BytePairTokenizer
from octavo.errors import DataError
from octavo.lab.language.gpt import GPT
from octavo.model_folder.carried_files import hold_files
from octavo.model_folder.model_config import own_model
from octavo.model_folder.save_load import load_model, save_model

TOKENIZER = "tokenizer.json"


def save_language_model(path: str | os.PathLike[str], model: GPT, tokenizer: BytePairTokenizer) -> None:
    """Write a model and its tokenizer as a model folder, which appears whole or not at all.

    The folder is that of :func:`octavo.save_model`, which writes it again from a model that was loaded or packed, and
    ``tokenizer.json`` is what the package ``tokenizers`` reads. What only trains, such as further heads of
    multi-token prediction, is saved, too. Raises DataError for a tokenizer of more ids than the model has, and
    ContainerError and OSErrors as :func:`octavo.save_model`.
    """
    if tokenizer.size > model.config.vocabulary:
        raise DataError(f"tokenizer of {tokenizer.size} ids; the model has {model.config.vocabulary}")
    hold_files(model, {TOKENIZER: tokenizer.to_json().encode()})
    save_model(model, path)


def load_language_model(path: str | os.PathLike[str]) -> tuple[GPT, BytePairTokenizer]:
    """Return the model of a folder, in evaluation mode, and its tokenizer.

    Raises ContainerError for a folder of another model, DataError for a tokenizer of more ids than the model has,
    OSErrors.
    """
    folder = Path(path)
    own_model(folder, "gpt")
    model, tokenizer = load_model(folder), BytePairTokenizer.load(folder)
    assert isinstance(model, GPT)
    if tokenizer.size > model.config.vocabulary:
        raise DataError(f"{folder / TOKENIZER}: {tokenizer.size} ids; the model has {model.config.vocabulary}")
    return model, tokenizer
