"""Weights that were packed, as the model holds them that they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.folder.skeleton import build_from_config
from octavo.folder.structure import read_structure
from octavo.folder.transformers_door import CONFIG
from octavo.folder.weight_files import STRUCTURE, Checkpoint, layers_of
from octavo.recipe.sites import is_transposed

if TYPE_CHECKING:
    from torch import Tensor


def as_in_the_model(source: Checkpoint, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return decoded tensors with those weights turned back that their model stores ``[in, out]``.

    :func:`octavo.save_model` writes the packed weight of transformers' Conv1D as that of a Linear, ``[out, in]``. Files
    without a description of layers have every weight as it was. Raises ModelError where transformers is missing, which
    knows the model; ContainerError where the description or configuration is none.
    """
    folder = source.path if source.is_folder else source.path.parent
    if not layers_of(source) or not (folder / CONFIG).exists():
        return tensors
    structure = read_structure(source.files[0], source.metadata()[STRUCTURE])
    layers = [path for path, record in structure["layers"].items() if record["class"] == "PackedLinear"]
    places = dict(build_from_config(folder, structure["class"], source).named_modules(remove_duplicate=False))
    turned = {f"{path}.weight" for path in layers if path in places and is_transposed(places[path])}
    return {name: tensor.T.contiguous() if name in turned else tensor for name, tensor in tensors.items()}
