"""Experts of a mixture by the paths of their layers: ``mlp.experts.3.down_proj`` is one of ``mlp.experts.*.down_proj``.

Which experts run depends on the tokens. The layers of one family share what they cannot have alone: a decision about
formats, a stage of a solver, the range of inputs where no token of the calibration data reached one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_EXPERT = re.compile(r"(^|\.)experts\.(?:expert_)?\d+(?=\.|$)")  # the second form in ModuleDicts of transformers


def expert_family(path: str) -> str | None:
    """Return the name that the layers of one matrix of all experts have in common; None for another layer."""
    return _EXPERT.sub(r"\1experts.*", path) if _EXPERT.search(path) else None


def experts_module(path: str) -> str | None:
    """Return the path of the module whose experts a layer is one of; None for another layer."""
    match = _EXPERT.search(path)
    return None if match is None else path[: match.end()].rpartition(".")[0]


def experts_of(paths: Iterable[str]) -> list[str]:
    """Return the experts that layers belong to, each once: ``mlp.experts.3``."""
    matches = (_EXPERT.search(path) for path in paths)
    return list(dict.fromkeys(match.string[: match.end()] for match in matches if match is not None))
