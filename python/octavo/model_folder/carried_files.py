"""The files that belong to a model beside its weights: carried from the folder it was read from to a new one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from octavo.errors import ContainerError
from octavo.model_folder.companion_files import CONFIG, belonging, regular_member
from octavo.storage import files
from octavo.storage.reading import read_bytes

#: Bytes of one file; a larger one stays where it is.
MOST_BYTES = 1 << 26
_NAME = "_octavo_files"


def carry_files(model: nn.Module, folder: Path) -> None:
    """Keep the files of ``folder`` that belong to its model (:func:`octavo.model_folder.companion_files.belongs`)."""
    hold_files(model, _read(folder))


def hold_files(model: nn.Module, contents: Mapping[str, bytes]) -> None:
    """Keep files, by their place in a folder, with ``model``: what saves the model writes them."""
    vars(model)[_NAME] = dict(contents)


def hand_files(model: nn.Module, other: nn.Module) -> None:
    """Keep the files of ``model`` with another model, too."""
    if isinstance(contents := vars(model).get(_NAME), dict):
        hold_files(other, contents)


def replaced_files(model: nn.Module, target: Path) -> set[str]:
    """Return the entries of a folder that go when ``model`` is written to it: files of another model like its own."""
    return {Path(place).parts[0] for place in belonging(target)} if vars(model).get(_NAME) else set()


def write_files(model: nn.Module, folder: Path, target: Path) -> None:
    """Write into ``folder``, which is to be ``target``, the files that belong to ``model``.

    Those that were kept; else those of the folder, or of the Hub's cache, that ``from_pretrained`` read the model from,
    unless ``target`` has such files: whoever saves a tokenizer of his own beside the model means that one.
    """
    found = vars(model).get(_NAME)
    if not isinstance(found, dict) or not found:
        source = _source(getattr(model, "config", None))
        found = {} if source is None or belonging(target) else _read(source)
    for place, content in found.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        files.write(folder / place, content)


def _read(folder: Path) -> dict[str, bytes]:
    """Return the files that belong to a model's folder, by place.

    A file that is none of the folder, or not to be read, is left out: whoever reads the tokenizer says what is wrong.
    """
    found: dict[str, bytes] = {}
    for place in belonging(folder):
        try:
            found[place] = read_bytes(regular_member(folder / place, folder), MOST_BYTES)
        except (ContainerError, OSError):
            continue
    return found


def _source(config: Any) -> Path | None:
    """Return the folder that transformers read a configuration from; None where it is not on this machine."""
    name = getattr(config, "name_or_path", None)
    if not isinstance(name, str) or not name or "\0" in name:
        return None
    folder = Path(name)
    if not folder.is_dir():
        hub = sys.modules.get("huggingface_hub")
        if hub is None:
            return None
        try:
            cached = hub.try_to_load_from_cache(name, CONFIG, revision=getattr(config, "_commit_hash", None))
        except (ValueError, OSError):  # no name of a repository
            return None
        if not isinstance(cached, str):
            return None
        folder = Path(cached).parent
    return folder if (folder / CONFIG).is_file() else None
