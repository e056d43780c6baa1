"""The text of the recipe that a model was quantized by, which goes with the model and into its file."""

from __future__ import annotations

from torch import nn

_NAME = "_octavo_recipe"


def note_recipe(model: nn.Module, text: str | None) -> None:
    """Write down the recipe of all of ``model``; None: there is no one recipe that would give it."""
    if text is None:
        vars(model).pop(_NAME, None)
    else:
        vars(model)[_NAME] = text


def noted_recipe(model: nn.Module) -> str | None:
    """Return the text that :func:`note_recipe` wrote down."""
    text = vars(model).get(_NAME)
    return text if isinstance(text, str) else None
