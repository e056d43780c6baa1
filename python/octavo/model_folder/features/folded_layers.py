"""Folded batch normalizations in a model that is built anew: a layer has a bias more, and the normalization is gone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from octavo.errors import ContainerError
from octavo.model_folder.stored_feature import Restoration, Stage, StoredFeature, is_names
from octavo.nn.folded_norm import FoldedNorm, folded_norms
from octavo.nn.replace_modules import replace_modules
from octavo.recipe.sites import join


def _describe(model: nn.Module) -> list[str] | None:
    return folded_norms(model) or None


def _restore(restoration: Restoration, paths: Any) -> None:
    """Take the normalizations of these paths out, and give layers that have a bias in the file one, to be filled."""
    if not paths:
        return
    model, names = restoration.model, restoration.by_name()
    folded: dict[int, nn.Module] = {}
    for path in paths:
        try:
            norm = model.get_submodule(path)
        except AttributeError:
            norm = None
        if not path or not isinstance(norm, _BatchNorm | FoldedNorm):
            raise ContainerError(f"{path}: a folded batch normalization in the file, and none in this model")
        folded[id(norm)] = FoldedNorm().train(norm.training)
    replace_modules(model, folded)
    for path, layer in model.named_modules():
        if isinstance(layer, _ConvNd | nn.Linear) and layer.bias is None and join(path, "bias") in names:
            weight = layer.weight
            layer.bias = nn.Parameter(torch.empty(weight.shape[0], dtype=weight.dtype, device=weight.device))


def _float_problem(paths: Any) -> str | None:
    if not paths:
        return None
    return (
        f"the batch normalization {paths[0]} is folded into the layer before it, which float folders do not tell; "
        "octavo.load_model loads it as it is"
    )


FOLDED = StoredFeature(
    "folded", Stage.MODULES, describe=_describe, is_valid=is_names, restore=_restore, float_problem=_float_problem
)
"""Its value: the paths of batch normalizations that are in the layers before them."""
