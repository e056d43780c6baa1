"""The polynomial model that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import OctavoError

if TYPE_CHECKING:
    from octavo.data import CharTokenizer
    from octavo.models.seq2seq import Seq2Seq

CONFIG = "config.json"


def shipped_folder() -> Path:
    """Return the folder of the shipped model; :mod:`octavo.systems.polynomials.export` says what it holds.

    Raises OctavoError where the package was installed without it.
    """
    folder = Path(__file__).with_suffix("")
    if not (folder / CONFIG).is_file():
        raise OctavoError(
            f"this installation comes without the polynomial model: {folder / CONFIG} is absent; give the path of an "
            "exported model"
        )
    return folder


def load_shipped() -> tuple[Seq2Seq, CharTokenizer]:
    """Return the shipped model, in eval mode, and its tokenizer. Raises OctavoError where it is absent."""
    from octavo.systems.polynomials.export import load_model  # with torch, which the folder alone does not need

    return load_model(shipped_folder())
