"""Finds the model that a command names: by name or by folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from octavo._reading import read_head

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
    """Return a model's layers: ``polynomials``, ``minilm``, or a folder that ``octavo train`` or transformers wrote.

    The weights of a Hugging Face model are not read: its parameters lie on the meta device. Raises OctavoError for a
    model that is not known, and as the readers of folders do.
    """
    if is_polynomial(model):
        from octavo.systems.polynomials.export import load_model
        from octavo.systems.polynomials.shipped import shipped_folder

        return load_model(model if Path(model).exists() else shipped_folder())[0]
    from octavo.folder.undescribed import skeleton
    from octavo.systems.sentences.text_encoder import find

    return skeleton(Path(model) if Path(model).exists() else find(model))
