"""Folded batch normalizations in a model that is built anew: a layer has a bias more, and the normalization is gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from octavo.errors import ContainerError
from octavo.nn.folded_norm import FoldedNorm
from octavo.recipe.sites import join

FOLDED = "folded"
"""Key in a structure of the paths of batch normalizations that are in the layers before them."""


def attach_folded(model: nn.Module, paths: Iterable[str], names: Collection[str]) -> None:
    """Take the normalizations of these paths out, and give layers that have a bias among ``names`` one, to be filled.

    Raises ContainerError for a path where no normalization stands.
    """
    found = list(paths)
    for path in found:
        parent, _, name = path.rpartition(".")
        try:
            norm = model.get_submodule(path)
        except AttributeError:
            norm = None
        if not path or not isinstance(norm, _BatchNorm | FoldedNorm):
            raise ContainerError(f"{path}: a folded batch normalization in the file, and none in this model")
        setattr(model.get_submodule(parent), name, FoldedNorm().train(norm.training))
    for path, layer in model.named_modules() if found else ():
        if isinstance(layer, _ConvNd | nn.Linear) and layer.bias is None and join(path, "bias") in names:
            weight = layer.weight
            layer.bias = nn.Parameter(torch.empty(weight.shape[0], dtype=weight.dtype, device=weight.device))
