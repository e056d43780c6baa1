"""Finds the model that a command names: by name or by folder."""

from __future__ import annotations

from pathlib import Path

from octavo._reading import read_head
from octavo.errors import OctavoError

POLYNOMIALS = "polynomials"


def is_polynomial(model: str) -> bool:
    """Whether it is the shipped model, or a folder that ``octavo train`` wrote."""
    given = Path(model)
    if model == POLYNOMIALS and not given.exists():
        return True
    return b'"seq2seq"' in read_head(given / "config.json", 4096)


def find(model: str) -> Path:
    """Return the folder or file of a model: ``polynomials``, ``minilm``, or its path.

    Raises OctavoError for a model that is not known, and as :func:`octavo.systems.sentences.text_encoder.find`.
    """
    if Path(model).exists():
        return Path(model)
    if is_polynomial(model):
        from octavo.systems.polynomials.shipped import shipped_folder

        return shipped_folder()
    from octavo.systems.sentences import text_encoder

    if model != text_encoder.MINILM:
        raise OctavoError(
            f"unknown model {model!r}; accepted are '{POLYNOMIALS}', '{text_encoder.MINILM}' and the path of a model "
            "folder"
        )
    return text_encoder.find(model)
