"""Finds the model that a command names: by name or by folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from octavo._reading import read_head
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from torch import nn

POLYNOMIALS = "polynomials"


def is_polynomial(model: str) -> bool:
    """Whether it is the shipped model, or a folder that ``octavo train`` wrote."""
    given = Path(model)
    if model == POLYNOMIALS and not given.exists():
        return True
    return b'"seq2seq"' in read_head(given / "config.json", 4096)


def build(model: str) -> nn.Module:
    """Return a model's layers: ``polynomials``, ``minilm``, or a model folder, of transformers or of Octavo.

    Weights are not read: parameters lie on the meta device. Raises OctavoError for a model that is not known, and as
    the readers of folders do.
    """
    from octavo.folder.undescribed import skeleton

    if Path(model).exists():
        return skeleton(Path(model))
    if is_polynomial(model):
        from octavo.systems.polynomials.shipped import shipped_folder

        return skeleton(shipped_folder())
    from octavo.systems.sentences.text_encoder import MINILM, find

    if model != MINILM:
        raise OctavoError(
            f"unknown model {model!r}; accepted are '{POLYNOMIALS}', '{MINILM}' and the path of a model folder"
        )
    return skeleton(find(model))
