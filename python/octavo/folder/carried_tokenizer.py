"""The tokenizer of a model folder, which goes with the model that was loaded from it into the folder it is saved to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from octavo import files
from octavo._reading import read_bytes
from octavo.errors import ContainerError
from octavo.folder.companion_files import regular_member
from octavo.folder.weight_files import TOKENIZER_TEXTS, VOCABULARIES

#: Bytes of one file; a larger one stays where it is.
MOST_BYTES = 1 << 26
_NAME = "_octavo_tokenizer"


def carry_tokenizer(model: nn.Module, folder: Path) -> None:
    """Keep the tokenizer's files of ``folder`` with ``model``.

    A file that is none of the folder, or not to be read, is not kept: whoever reads the tokenizer says what is wrong.
    """
    found: dict[str, bytes] = {}
    for name in (*TOKENIZER_TEXTS, *VOCABULARIES):
        try:
            found[name] = read_bytes(regular_member(folder / name, folder), MOST_BYTES)
        except (ContainerError, OSError):
            continue
    hold_tokenizer(model, found)


def hold_tokenizer(model: nn.Module, contents: Mapping[str, bytes]) -> None:
    """Keep files of a tokenizer, by name, with ``model``: what saves the model writes them."""
    vars(model)[_NAME] = dict(contents)


def write_tokenizer(model: nn.Module, folder: Path) -> None:
    """Write the files of the tokenizer that was kept; none for other models."""
    found = vars(model).get(_NAME)
    for name, content in found.items() if isinstance(found, dict) else ():
        files.write(folder / name, content)
