"""Finds the model that a command names: by name or by its path."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import OctavoError
from octavo.model_folder import subject_registry
from octavo.storage.named_models import NAMES, resolved


def find(model: str) -> Path:
    """Return the folder or file of a model: of a path, of a package that carries it, or of a subject (``polynomials``).

    Raises OctavoError for a model that is not known, and as :func:`octavo.storage.named_models.resolved`.
    """
    path = resolved(model)
    if path.exists():
        return path
    if (guest := subject_registry.named(model)) is not None:
        return guest.folder()
    known = ", ".join(f"'{name}'" for name in (*subject_registry.names(), *NAMES))
    raise OctavoError(f"unknown model {model!r}; accepted are {known} and the path of a model")
