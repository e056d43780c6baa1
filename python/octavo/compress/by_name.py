"""Finds the model that a command names: by name or by folder."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import OctavoError
from octavo.model_folder import subject_registry


def find(model: str) -> Path:
    """Return the folder or file of a model: ``minilm``, the name of a subject (``polynomials``), or its path.

    Raises OctavoError for a model that is not known, and as :func:`octavo.compress.sentence_encoder.find`.
    """
    if Path(model).exists():
        return Path(model)
    from octavo.compress import sentence_encoder  # it loads torch

    if model == sentence_encoder.MINILM:
        return sentence_encoder.find(model)
    if (guest := subject_registry.named(model)) is not None:
        return guest.folder()
    known = ", ".join(f"'{name}'" for name in (*subject_registry.names(), sentence_encoder.MINILM))
    raise OctavoError(f"unknown model {model!r}; accepted are {known} and the path of a model folder")
