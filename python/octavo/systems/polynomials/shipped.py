"""The polynomial model that comes with the package."""

from __future__ import annotations

from pathlib import Path

from octavo.data import CharTokenizer
from octavo.errors import OctavoError
from octavo.models.seq2seq import Seq2Seq
from octavo.systems.polynomials.export import CONFIG, load_model


def shipped_folder() -> Path:
    """Return the folder of the shipped model; :mod:`octavo.systems.polynomials.export` says what it holds.

    Raises OctavoError where the package was installed without it.
    """
    folder = Path(__file__).with_suffix("")
    if not (folder / CONFIG).is_file():
        raise OctavoError(f"the shipped polynomial model is not in this installation: {folder / CONFIG} is absent")
    return folder


def load_shipped() -> tuple[Seq2Seq, CharTokenizer]:
    """Return the shipped model, in eval mode, and its tokenizer. Raises OctavoError where it is absent."""
    return load_model(shipped_folder())
