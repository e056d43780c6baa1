"""What a recipe does to a model folder or a file of tensors: the plan that ``octavo pack`` carries out."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ContainerError, ModelError
from octavo.late_binding import late
from octavo.model_folder.infer_structure import skeleton
from octavo.model_folder.weight_files import Checkpoint, held, layers_of
from octavo.quant.replace_layers import check_layers
from octavo.recipe import Recipe
from octavo.recipe.explanation import Explanation, explain_tensors

TENSORS_ALONE = "tensors alone are packed, which octavo.load_model does not read"


def explain_folder(recipe: Recipe, path: Path) -> Explanation:
    """Return who gets what of the model in a folder; of its tensors where ``octavo pack`` packs those, and why it does.

    Weights are not read: parameters lie on the meta device. A packed or simulated folder is explained as the float
    model that it was, another package's file as its model with decoded weights, a file of tensors as those. Raises
    FormatError as :meth:`octavo.Recipe.explain` and, of tensors, :meth:`octavo.Recipe.assign`; DTypeError for layers
    that cannot be quantized; ModelError and ContainerError for a model that is neither known nor in tensors.
    """
    is_foreign = late("foreign_reader")(path) is not None
    if path.is_file() and not is_foreign:
        return explain_tensors(recipe.rules, Checkpoint.open(path).tensors())
    source = Checkpoint.open(path) if held(path) and not is_foreign else None
    try:
        model = skeleton(path)
    except (ModelError, ContainerError) as error:
        if source is None or layers_of(source):
            raise
        return explain_tensors(recipe.rules, source.tensors(), without_model=f"{TENSORS_ALONE}: {error}")
    check_layers(model, recipe)
    return recipe.explain(model)
