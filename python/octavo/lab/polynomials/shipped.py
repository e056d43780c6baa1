"""The polynomial model that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import OctavoError
from octavo.storage.reading import read_head

if TYPE_CHECKING:
    from octavo.data import CharTokenizer
    from octavo.lab.polynomials.seq2seq import Seq2Seq

CONFIG = "config.json"
NAME = "polynomials"
"""What commands call the shipped model."""


def is_polynomial(model: str) -> bool:
    """Whether it is the shipped model, or a folder that ``octavo lab train polynomials`` wrote."""
    given = Path(model)
    if model == NAME and not given.exists():
        return True
    return b'"seq2seq"' in read_head(given / CONFIG, 4096)


def shipped_folder() -> Path:
    """Return the folder of the shipped model; :mod:`octavo.lab.polynomials.export` says what it holds.

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
    from octavo.lab.polynomials.export import load_model  # with torch, which the folder alone does not need

    return load_model(shipped_folder())
