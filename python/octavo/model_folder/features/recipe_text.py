"""The text of the recipe that gave the whole model its formats."""

from __future__ import annotations

from typing import Any

from octavo.model_folder.stored_feature import Restoration, Stage, StoredFeature
from octavo.model_folder.weight_files import RECIPE
from octavo.recipe.note import note_recipe, noted_recipe


def _restore(restoration: Restoration, text: Any) -> None:
    note_recipe(restoration.model, text)


RECIPE_TEXT = StoredFeature(RECIPE, Stage.FILLED, in_metadata=True, describe=noted_recipe, restore=_restore)
